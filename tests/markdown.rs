//! A Markdown page of the repository, with its code blocks as tests run them.
//!
//! A block marked `sh` runs unchanged; the `text` block after it, if any, is its output. A
//! `console` block is for a person: it does not end, or needs something that a test does not have.

use std::fs;
use std::path::Path;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// What tests/node runs: a page, and its sections (default: all). Other shell blocks of README and
/// tutorials need no cluster, and tests/it runs them.
pub(crate) const ON_A_CLUSTER: [(&str, &[&str]); 3] = [
    ("README.md", &["Install on a cluster"]),
    ("docs/tutorials/first-election.md", &[]),
    ("docs/tutorials/first-job.md", &[]),
];

/// A page, named by its path from the repository's root.
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A code block, and the level-2 section that contains it.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) section: String,
    pub(crate) language: String,
    pub(crate) code: String,
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn page(name: &str) -> Page {
    let text = fs::read_to_string(root().join(name)).expect("a page must be readable");
    Page {
        name: name.to_owned(),
        text,
    }
}

impl Page {
    pub(crate) fn events(&self) -> Parser<'_> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES)
    }

    /// Returns its code blocks, in order.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let (mut blocks, mut section) = (Vec::<Block>::new(), String::new());
        let (mut in_section, mut in_block) = (false, false);
        for event in self.events() {
            match event {
                Event::Start(Tag::Heading {
                    level: HeadingLevel::H2,
                    ..
                }) => {
                    in_section = true;
                    section.clear();
                }
                Event::End(TagEnd::Heading(_)) => in_section = false,
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language))) => {
                    in_block = true;
                    blocks.push(Block {
                        section: section.clone(),
                        language: language.into_string(),
                        code: String::new(),
                    });
                }
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Text(text) | Event::Code(text) if in_section => section.push_str(&text),
                Event::Text(text) if in_block => {
                    if let Some(block) = blocks.last_mut() {
                        block.code.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        blocks
    }

    /// Returns the script of the `sh` blocks in these sections (default: all), and the output that
    /// the page shows.
    pub(crate) fn script(&self, sections: &[&str]) -> Script {
        let mut script = Script::default();
        let mut after_shell = false;
        for block in self.blocks() {
            let is_wanted = sections.is_empty() || sections.contains(&block.section.as_str());
            match block.language.as_str() {
                "sh" if is_wanted => script.commands.push_str(&block.code),
                "text" if is_wanted && after_shell => {
                    script.output.extend(block.code.lines().map(shape));
                }
                _ => {}
            }
            after_shell = block.language == "sh";
        }
        script
    }
}

/// The commands of a page, and the output that it shows.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) commands: String,
    /// The lines, each normalized by `shape`.
    pub(crate) output: Vec<String>,
}

impl Script {
    /// Returns the first shown line that was not printed after the previous ones. A line that ends
    /// with `…` shows the beginning of a printed line. Further lines may be printed between two
    /// shown ones.
    pub(crate) fn missing(&self, printed: &str) -> Option<&str> {
        let mut printed = printed.lines().map(shape);
        self.output
            .iter()
            .find(|shown| match shown.split_once('…') {
                Some((beginning, _)) => !printed.any(|line| line.starts_with(beginning)),
                None => !printed.any(|line| line == **shown),
            })
            .map(String::as_str)
    }
}

/// Returns a line of output without the parts that vary between runs: ids, numbers and column
/// widths.
pub(crate) fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split_whitespace() {
        let mut run = String::new();
        let mut word_shape = String::new();
        for character in word.chars().chain(['\0']) {
            if character.is_ascii_hexdigit() || character == '-' {
                run.push(character);
                continue;
            }
            let is_varying = run.chars().any(|c| c.is_ascii_digit());
            word_shape.push_str(if is_varying { "0" } else { &run });
            run.clear();
            if character != '\0' {
                word_shape.push(character);
            }
        }
        shape.push_str(&word_shape);
        shape.push(' ');
    }
    shape.trim_end().to_owned()
}
