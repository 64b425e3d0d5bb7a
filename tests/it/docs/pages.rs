//! All Markdown pages of the repository: their links, and their anchors.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, HeadingLevel, Tag, TagEnd};

use crate::markdown::{Page, page, root};

/// Directories without text of this project.
const NOT_OURS: [&str; 3] = [".git", "target", "node_modules"];

/// Finds the files of the repository with one extension, without build output and downloads.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder must be readable") {
        let path = entry.expect("the entry must be readable").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !NOT_OURS.contains(&name.as_ref()) {
                files(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns all pages, sorted by name.
pub(crate) fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    files(root(), &mut found);
    found.sort();
    let name = |path: &Path| path.strip_prefix(root()).map(Path::to_path_buf);
    found
        .iter()
        .map(|path| {
            let name = name(path).expect("it must be below the root");
            page(&name.to_string_lossy())
        })
        .collect()
}

/// Returns the targets of its links.
pub(crate) fn links(page: &Page) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.into_string())
        }
        _ => None,
    };
    page.events().filter_map(target).collect()
}

/// Returns the anchors of its headings, as GitHub generates them.
pub(crate) fn anchors(page: &Page) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    headings(page)
        .into_iter()
        .map(|(_, heading)| {
            let slug = slug(&heading);
            let times = seen.entry(slug.clone()).or_default();
            *times += 1;
            match *times {
                1 => slug,
                again => format!("{slug}-{}", again - 1),
            }
        })
        .collect()
}

fn headings(page: &Page) -> Vec<(HeadingLevel, String)> {
    let mut headings = Vec::new();
    let mut open = false;
    for event in page.events() {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                open = true;
                headings.push((level, String::new()));
            }
            Event::End(TagEnd::Heading(_)) => open = false,
            Event::Text(text) | Event::Code(text) if open => {
                if let Some((_, heading)) = headings.last_mut() {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    headings
}

/// Returns GitHub's anchor of a heading: lower case, words joined by hyphens, without punctuation.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let lower = heading.trim().to_lowercase();
    lower
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}
