//! The files of the web page. They are in the program, so that it can be served from anywhere, and load nothing from elsewhere.

/// Only what the agent itself serves is loaded and connected to, nothing is written between tags, and no other page may frame this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of all answers.
pub(crate) const HEADERS: [(&str, &str); 5] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    // What an agent knows is old at once, and a new version of the agent has other files.
    ("cache-control", "no-store"),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// All files: the path, the type, and what is in it.
pub(crate) const FILES: [(&str, &str, &str); 12] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/api/v1/openapi.json", "application/json", include_str!("../page/openapi.json")),
    ("/page/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("../page/main.js")),
    ("/page/fabric.js", SCRIPT, include_str!("../page/fabric.js")),
    ("/page/levels.js", SCRIPT, include_str!("../page/levels.js")),
    ("/page/draw.js", SCRIPT, include_str!("../page/draw.js")),
    ("/page/plane.js", SCRIPT, include_str!("../page/plane.js")),
    ("/page/time.js", SCRIPT, include_str!("../page/time.js")),
    ("/page/denied.js", SCRIPT, include_str!("../page/denied.js")),
    ("/page/details.js", SCRIPT, include_str!("../page/details.js")),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The policy would stop it in a browser; here it is found without one.
    #[test]
    fn the_page_needs_nothing_from_elsewhere_and_nothing_between_tags() {
        for (path, _, text) in FILES.into_iter().filter(|(_, kind, _)| *kind != "application/json") {
            for never in
                ["//cdn", "https://", "eval(", "innerHTML", "<style", " style=", "onclick=", "@import"]
            {
                assert!(!text.contains(never), "{path}: {never}");
            }
            // The name of SVG's language, which is no address to load.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://"), "{path}");
            let has_code = text.match_indices("<script").any(|(at, _)| {
                let tag = text.get(at..).unwrap_or_default();
                !tag.contains("src=") || !tag.contains("></script>")
            });
            assert!(!has_code, "{path}");
        }
    }

    /// What the page loads is there.
    #[test]
    fn the_files_refer_to_each_other() {
        let is_file = |name: &str| FILES.iter().any(|(path, ..)| *path == name);
        let mut found = 0;
        for (path, _, text) in FILES {
            for (before, after) in [("src=\"", '"'), ("href=\"/", '"'), ("from \"./", '"')] {
                for part in text.split(before).skip(1) {
                    let name = part.split(after).next().unwrap_or_default();
                    let name = match before {
                        "from \"./" => format!("/page/{name}"),
                        "href=\"/" => format!("/{name}"),
                        _ => name.to_owned(),
                    };
                    let is_answer = name.starts_with("/api/") || name == "/metrics";
                    assert!(is_file(&name) || is_answer, "{path}: {name}");
                    found += 1;
                }
            }
        }
        assert!(found > 10, "{found}");
    }
}
