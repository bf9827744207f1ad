//! No import circle between files: if a file uses another one, directly or through others, the other does not use it.
//!
//! Read are `use` declarations outside of tests, without re-exports (`pub use`), of every package. A path leads to the file of the
//! deepest module that it names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::root;
use crate::sources::sources;

/// A module's path within its package: `["controllers", "pressure"]`.
type Module = Vec<String>;

#[test]
fn no_files_import_each_other() {
    let circles: Vec<_> = packages().iter().flat_map(|package| circles(&imports(package))).collect();
    let lines: Vec<_> = circles.iter().map(|circle| circle.join(" <-> ")).collect();
    assert!(circles.is_empty(), "{} import circles; move the shared definitions:\n{}", circles.len(), lines.join("\n"));
}

#[test]
fn circles_are_found() {
    let check = |files: &[(&str, &str)], expected: &[&[&str]]| {
        let package: Package = files.iter().map(|&(path, text)| (module(Path::new(path)), (path.to_owned(), text.to_owned()))).collect();
        assert_eq!(circles(&imports(&package)), expected, "{files:?}");
    };
    check(&[("lib.rs", "mod a;\nmod b;\npub use a::A;"), ("a.rs", "use crate::b::{B, c};"), ("b.rs", "use std::fmt;")], &[]);
    check(&[("a.rs", "use crate::b::B;"), ("b.rs", "use super::a::A;")], &[&["a.rs", "b.rs"]]);
    check(&[("a.rs", "use crate::b::B;"), ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}")], &[]);
    check(&[("a/mod.rs", "use inner::{B, self};\nmod inner;"), ("a/inner.rs", "use super::A;")], &[&["a/inner.rs", "a/mod.rs"]]);
    check(&[("a.rs", "use crate::{b, c::{C, D}};"), ("b.rs", "use crate::c::E;"), ("c.rs", "use crate::a;")], &[&["a.rs", "b.rs", "c.rs"]]);
}

/// Files of one package by module: the file's name and text.
type Package = BTreeMap<Module, (String, String)>;

/// All packages with a `src` folder.
fn packages() -> Vec<Package> {
    let root = root();
    let mut found: BTreeMap<PathBuf, Package> = BTreeMap::new();
    for (path, text) in sources(&root, &["rs"]) {
        let Some(src) = path.ancestors().find(|folder| folder.ends_with("src")) else { continue };
        let below = path.strip_prefix(src).unwrap();
        if below.components().any(|part| ["tests", "tests.rs", "bin"].iter().any(|&name| part.as_os_str() == name)) {
            continue;
        }
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        found.entry(src.to_owned()).or_default().insert(module(below), (name, text));
    }
    assert!(found.len() > 10, "few packages under {}", root.display());
    found.into_values().collect()
}

/// The module of a file below `src`.
fn module(below: &Path) -> Module {
    let mut path: Module = below.with_extension("").components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// Which file imports which.
fn imports(package: &Package) -> BTreeMap<String, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    for (module, (name, text)) in package {
        let targets = uses(text).iter().filter_map(|path| resolve(package, module, path)).filter(|target| target != name).collect();
        found.insert(name.clone(), targets);
    }
    found
}

/// The paths in a file's private `use` declarations, without its tests.
fn uses(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut declaration = String::new();
    let mut test_next = false;
    let mut in_module = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if in_module {
            in_module = line != "}";
        } else if !line.starts_with(' ') && line.contains("mod ") && line.ends_with('{') {
            // Tests, or a module within the file, whose `super` is the file itself.
            in_module = true;
        } else if !declaration.is_empty() || (trimmed.starts_with("use ") && !test_next) {
            declaration.push_str(trimmed);
        }
        test_next = trimmed == "#[cfg(test)]";
        if declaration.ends_with(';') {
            let tree = declaration.trim_start_matches("use ").trim_end_matches(';').to_owned();
            expand(&tree, &mut Vec::new(), &mut found);
            declaration.clear();
        }
    }
    found
}

/// Writes out the braces of a use tree: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn expand(tree: &str, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let before = prefix.len();
    if let Some((path, group)) = tree.split_once('{') {
        prefix.extend(path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(ToOwned::to_owned));
        for part in split(group.strip_suffix('}').unwrap_or(group)) {
            expand(part, prefix, found);
        }
    } else if !tree.is_empty() {
        let path = tree.split(" as ").next().unwrap();
        prefix.extend(path.split("::").map(|part| part.trim().to_owned()).filter(|part| part != "self" || before == 0));
        found.push(prefix.clone());
    }
    prefix.truncate(before);
}

/// Splits at the commas outside of braces.
fn split(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[from..]);
    parts
}

/// The file that a path used in `module` leads to; `None` for another package.
fn resolve(package: &Package, module: &Module, path: &[String]) -> Option<String> {
    let mut absolute = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (absolute, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|part| part == "super") {
                absolute.pop();
                rest = &rest[1..];
            }
        }
        child => {
            absolute.push(child.to_owned());
            package.get(&absolute)?;
            rest = &path[1..];
        }
    }
    for part in rest {
        absolute.push(part.clone());
        if !package.contains_key(&absolute) {
            absolute.pop();
            break;
        }
    }
    package.get(&absolute).map(|(name, _)| name.clone())
}

/// The groups of files that reach each other.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut pending: Vec<_> = imports.get(from).into_iter().flatten().collect();
        while let Some(next) = pending.pop() {
            if reached.insert(next.clone()) {
                pending.extend(imports.get(next).into_iter().flatten());
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|file| (file, reach(file))).collect();
    let mut found = BTreeSet::new();
    for (&file, from) in &reached {
        if from.contains(file) {
            found.insert(from.iter().filter(|&other| reached.get(other).is_some_and(|back| back.contains(file))).cloned().collect());
        }
    }
    found.into_iter().collect()
}
