//! Charts of a job's activity: SVG for mail and files, characters for terminals.

mod picture;
mod scale;
#[cfg(test)]
mod tests;
mod text;

pub use picture::svg;
pub use text::terminal;
