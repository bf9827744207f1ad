//! The API's description in OpenAPI 3.0, made of the table of routes and the types that are spoken.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::{Code, Refused};
use crate::routes::{Operation, ROUTES, Route, Who};

/// What any request may be refused for.
const ALWAYS: [Code; 4] = [Code::BadRequest, Code::Forbidden, Code::NotFound, Code::Busy];

/// The description.
#[must_use]
pub fn describe() -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut paths = Map::new();
    let refused = generator.subschema_for::<Refused>().to_value();
    for route in ROUTES {
        let mut operation = Map::new();
        operation.insert("operationId".to_owned(), json!(route.name));
        operation.insert("summary".to_owned(), json!(route.summary));
        operation.insert("description".to_owned(), json!(who(route.who)));
        operation.insert("parameters".to_owned(), parameters(route));
        if let Some(body) = route.body {
            let schema = body(&mut generator).to_value();
            operation
                .insert("requestBody".to_owned(), json!({ "required": true, "content": { "application/json": { "schema": schema } } }));
        }
        let answer = match (route.answer, route.operation) {
            (Some(answer), _) => json!({ "application/json": { "schema": answer(&mut generator).to_value() } }),
            (None, Operation::Description) => json!({ "application/json": { "schema": { "type": "object" } } }),
            (None, _) => json!({ "text/plain": { "schema": { "type": "string" } } }),
        };
        let mut responses = Map::new();
        responses.insert("200".to_owned(), json!({ "description": "Done.", "content": answer }));
        for code in ALWAYS.iter().chain(route.refusals) {
            let shown = json!({ "description": "Refused; nothing has changed.", "content": { "application/json": { "schema": refused } } });
            responses.insert(code.status().to_string(), shown);
        }
        operation.insert("responses".to_owned(), Value::Object(responses));
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Value::Object(path) = path {
            path.insert(route.method.to_lowercase(), Value::Object(operation));
        }
    }
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Thermocline pool manager",
            "version": "1",
            "description": "Who has which slice of the memory that hosts share. Every change is on disk before it is answered, and every request may be said again.",
            "license": { "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0" },
        },
        "servers": [{ "url": "https://pool-manager:7443", "description": "Certificates on both sides." }],
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true).into_iter().map(|(name, schema)| (name, plain(schema))).collect::<Map<_, _>>() },
    })
}

/// A choice among words as one list of words, which generators of clients make one type of; what each means goes into the
/// description.
fn plain(schema: Value) -> Value {
    let Some(choices) = schema.get("oneOf").and_then(Value::as_array) else { return schema };
    let word = |choice: &Value| choice.pointer("/enum/0").and_then(Value::as_str).map(str::to_owned);
    let text = |of: &Value| of.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(words) = choices.iter().map(word).collect::<Option<Vec<String>>>() else { return schema };
    let mut told = text(&schema);
    for (word, choice) in words.iter().zip(choices) {
        told += &format!("\n- `{word}`: {}", text(choice));
    }
    json!({ "type": "string", "enum": words, "description": told })
}

fn who(who: Who) -> &'static str {
    match who {
        Who::Anybody => "For whoever has a certificate that the manager takes.",
        Who::Host => "For the host whose name is in the path and in the certificate.",
        Who::Operator => "For operators, by the name in the certificate.",
    }
}

/// Numbers are those that are numbers in paths; all else are names.
fn parameters(route: &Route) -> Value {
    let segments = route.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let in_path = segments.map(|name| (name, "path", matches!(name, "emc" | "index")));
    let in_query = route.query.iter().map(|&(name, number)| (name, "query", number));
    let shown = in_path.chain(in_query).map(|(name, place, number)| {
        let schema = if number { json!({ "type": "integer", "minimum": 0 }) } else { json!({ "type": "string" }) };
        json!({ "name": name, "in": place, "required": true, "schema": schema })
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_and_every_type_is_described() {
        let described = describe();
        for route in ROUTES {
            let operation = &described["paths"][route.path][route.method.to_lowercase()];
            assert_eq!(operation["operationId"], route.name, "{}", route.path);
        }
        assert_eq!(described["components"]["schemas"]["Action"]["enum"], json!(["offline"]));
        // Whatever is referred to is there.
        let text = described.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(described["components"]["schemas"][name].is_object(), "{name} is not described");
        }
    }
}
