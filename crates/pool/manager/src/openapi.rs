//! The API's description in OpenAPI 3.0, generated from the table of routes and the types of its messages.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::api::{Code, ErrorResponse};
use crate::routes::{Access, Operation, ROUTES, Route};

/// Error codes of every route.
const ALWAYS: [Code; 4] = [Code::BadRequest, Code::Forbidden, Code::NotFound, Code::Busy];

/// Generates the description.
#[must_use]
pub fn describe() -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    let mut paths = Map::new();
    let refused = generator.subschema_for::<ErrorResponse>().to_value();
    for route in ROUTES {
        let mut operation = Map::new();
        operation.insert("operationId".to_owned(), json!(route.name));
        operation.insert("summary".to_owned(), json!(route.summary));
        operation.insert("description".to_owned(), json!(access(route.access)));
        operation.insert("parameters".to_owned(), parameters(route));
        if let Some(body) = route.body {
            let schema = body(&mut generator).to_value();
            operation
                .insert("requestBody".to_owned(), json!({ "required": true, "content": { "application/json": { "schema": schema } } }));
        }
        let content = match (route.response, route.operation) {
            (Some(response), _) => json!({ "application/json": { "schema": response(&mut generator).to_value() } }),
            (None, Operation::Description) => json!({ "application/json": { "schema": { "type": "object" } } }),
            (None, _) => json!({ "text/plain": { "schema": { "type": "string" } } }),
        };
        let mut responses = Map::new();
        responses.insert("200".to_owned(), json!({ "description": "Success.", "content": content }));
        for code in ALWAYS.iter().chain(route.refusals) {
            let shown =
                json!({ "description": "ErrorResponse; nothing has changed.", "content": { "application/json": { "schema": refused } } });
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
            "description": "Assigns slices of the memory that hosts share. Every change is on disk before its request is answered, and every request may be repeated.",
            "license": { "name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0" },
        },
        "servers": [{ "url": "https://pool-manager:7443", "description": "Mutual TLS." }],
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true).into_iter().map(|(name, schema)| (name, plain(schema))).collect::<Map<_, _>>() },
    })
}

/// Converts a choice among described constants to one enumeration, for which client generators produce one type. The
/// meaning of each constant goes into the description.
fn plain(schema: Value) -> Value {
    let Some(choices) = schema.get("oneOf").and_then(Value::as_array) else { return schema };
    let word = |choice: &Value| choice.pointer("/enum/0").and_then(Value::as_str).map(str::to_owned);
    let text = |of: &Value| of.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(words) = choices.iter().map(word).collect::<Option<Vec<String>>>() else { return schema };
    let mut description = text(&schema);
    for (word, choice) in words.iter().zip(choices) {
        description += &format!("\n- `{word}`: {}", text(choice));
    }
    json!({ "type": "string", "enum": words, "description": description })
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Any => "For all hosts and operators of the pool, by the name in the certificate.",
        Access::Host => "For the host in the path, by the name in the certificate.",
        Access::Operator => "For operators, by the name in the certificate.",
    }
}

/// Parameters of a route. In paths, `emc` and `index` are numbers and all others are names.
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
        // Every reference has its definition.
        let text = described.to_string();
        for reference in text.split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(described["components"]["schemas"][name].is_object(), "{name} is not described");
        }
    }
}
