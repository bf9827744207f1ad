//! The page's files, compiled in. They are built from `web/src` (`make console-page`).

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Asset {
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) bytes: &'static [u8],
}

/// All files of the page. A folder of the page would be another path: `/` is the only one.
pub(crate) const ASSETS: [Asset; 4] = [
    Asset { path: "/", content_type: "text/html; charset=utf-8", bytes: include_bytes!("../../../../web/dist/index.html") },
    Asset { path: "/console.js", content_type: "text/javascript; charset=utf-8", bytes: include_bytes!("../../../../web/dist/console.js") },
    Asset { path: "/console.css", content_type: "text/css; charset=utf-8", bytes: include_bytes!("../../../../web/dist/console.css") },
    Asset { path: "/icon.svg", content_type: "image/svg+xml", bytes: include_bytes!("../../../../web/dist/icon.svg") },
];

/// The file at a path.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_needs_no_inline_script_or_style() {
        let html = std::str::from_utf8(find("/").unwrap().bytes).unwrap();
        assert!(html.contains("src=\"/console.js\"") && html.contains("href=\"/console.css\""));
        for inline in ["<style", "style=", "<script>", "onclick", "http://", "https://"] {
            assert!(!html.contains(inline), "{inline}");
        }
    }
}
