//! Patterns for cgroup paths and for names: which texts are patterns that could match.

use units::quantity::Invalid;

/// The longest pattern, in bytes: the kernel's `PATH_MAX`.
const GLOB_BYTES_MAX: usize = 4096;

/// A pattern that could match a cgroup.
pub(crate) fn read_glob(text: &str) -> Result<String, Invalid> {
    let refuse = |message: &str, remedy: &str| Err(Invalid::new(message, remedy));
    if !text.starts_with('/') {
        return refuse("not a path below the cgroup2 root", "start it with /, such as \"/system.slice/*.service\"");
    }
    if text.len() > GLOB_BYTES_MAX || text.contains('\0') {
        return refuse("longer than any path, or with a zero byte in it", "write a shorter pattern");
    }
    if text.len() > 1 && text.ends_with('/') || text.contains("//") {
        return refuse("can match nothing: a cgroup's path has no empty parts", "leave out the extra /");
    }
    if text.split('/').any(|part| part == "." || part == "..") {
        return refuse("can match nothing: a cgroup's path has no . or .. in it", "write the path that is meant");
    }
    check_brackets(text)?;
    Ok(text.to_owned())
}

/// A pattern that could match a name.
pub(crate) fn read_name_glob(text: &str) -> Result<String, Invalid> {
    if text.is_empty() {
        return Err(Invalid::new("matches no name", "write the name that is meant, or leave the key out"));
    }
    if text.len() > GLOB_BYTES_MAX || text.contains('\0') {
        return Err(Invalid::new("longer than any name, or with a zero byte in it", "write a shorter pattern"));
    }
    check_brackets(text)?;
    Ok(text.to_owned())
}

/// A key and a pattern that could match its value.
pub(crate) fn read_annotation(text: &str) -> Result<String, Invalid> {
    match text.split_once('=') {
        Some((key, pattern)) if !key.is_empty() => read_name_glob(pattern).map(|_| text.to_owned()),
        _ => Err(Invalid::new("not a key and a pattern", "write it like \"example.com/tier=batch*\"")),
    }
}

/// Every `[` and `{` is closed, and every backslash has a character to escape.
fn check_brackets(text: &str) -> Result<(), Invalid> {
    let mut braces: usize = 0;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.next().is_none() => {
                return Err(Invalid::new("ends with a backslash that escapes nothing", "double it or leave it out"));
            }
            '[' => {
                chars.next_if(|c| "!^".contains(*c));
                // A bracket right after the opening one stands for itself.
                chars.next();
                if !chars.any(|c| c == ']') {
                    return Err(Invalid::new("a [ that is never closed", "close it with ], or write \\\\[ for the character"));
                }
            }
            '{' => braces += 1,
            '}' => match braces.checked_sub(1) {
                Some(left) => braces = left,
                None => return Err(Invalid::new("a } that was never opened", "open it with {, or write \\\\} for the character")),
            },
            _ => {}
        }
    }
    if braces > 0 {
        return Err(Invalid::new("a { that is never closed", "close it with }, or write \\\\{ for the character"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for good in
            ["/", "/*", "/**", "/system.slice/*.service", "/a[bc]d", "/[]x]", "/[!]]", "/[{]", "/{a,b{c,d}}", r"/dev-\\x2d", r"/\[", "/a?"]
        {
            assert_eq!(read_glob(good).as_deref(), Ok(good));
        }
        for (bad, hint) in [
            ("", "start it with /"),
            ("system.slice/*", "start it with /"),
            ("/a/", "extra /"),
            ("//a", "extra /"),
            ("/a/../b", "path that is meant"),
            ("/[ab", "close it with ]"),
            ("/[]", "close it with ]"),
            ("/{a", "close it with }"),
            ("/a}", "open it with {"),
            ("/a\\", "double it"),
            ("/\0", "shorter"),
        ] {
            match read_glob(bad) {
                Ok(_) => panic!("{bad:?} was taken"),
                Err(invalid) => assert!(invalid.remedy.contains(hint), "{bad:?}: {invalid:?}"),
            }
        }
    }

    #[test]
    fn patterns_for_containers() {
        for good in ["istio-proxy", "*", "a/b", "{x,y}-exporter", "[ab]"] {
            assert_eq!(read_name_glob(good).as_deref(), Ok(good));
            let annotation = format!("example.com/tier={good}");
            assert_eq!(read_annotation(&annotation), Ok(annotation));
        }
        for (bad, hint) in [("", "leave the key out"), ("a{b", "close it with }"), ("a\0", "shorter")] {
            assert!(read_name_glob(bad).unwrap_err().remedy.contains(hint), "{bad:?}");
            assert!(read_annotation(&format!("k={bad}")).unwrap_err().remedy.contains(hint), "{bad:?}");
        }
        for bad in ["", "batch", "=batch"] {
            assert!(read_annotation(bad).unwrap_err().remedy.contains("write it like"), "{bad:?}");
        }
    }
}
