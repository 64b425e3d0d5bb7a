//! The files of the page, in the binary: it needs no network besides the API server.

use axum::Router;
use axum::routing::get;
use http::header::CONTENT_TYPE;

/// A path, a media type and a text.
type File = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [File; 14] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/icon.svg", SVG, include_str!("page/icon.svg")),
    ("/main.js", SCRIPT, include_str!("page/main.js")),
    ("/api.js", SCRIPT, include_str!("page/api.js")),
    ("/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/graph.js", SCRIPT, include_str!("page/graph.js")),
    ("/grid.js", SCRIPT, include_str!("page/grid.js")),
    ("/hour.js", SCRIPT, include_str!("page/hour.js")),
    ("/lock.js", SCRIPT, include_str!("page/lock.js")),
    ("/release.js", SCRIPT, include_str!("page/release.js")),
    ("/status.js", SCRIPT, include_str!("page/status.js")),
    ("/table.js", SCRIPT, include_str!("page/table.js")),
    ("/waits.js", SCRIPT, include_str!("page/waits.js")),
];

/// Adds the files to a router.
pub(super) fn add<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.iter().fold(router, |router, (path, kind, text)| {
        router.route(path, get(async || ([(CONTENT_TYPE, *kind)], *text)))
    })
}
