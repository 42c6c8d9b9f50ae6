//! The messages that a file of the source has, and the comments with the words for their rows.

use std::collections::BTreeMap;

use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, LitStr, Meta, Token};

/// A text with fewer letters only passes on another message.
const FEWEST_LETTERS: usize = 6;

/// The word before the last cell of a row.
const CURE: &str = "Cure: ";

/// A message of the source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// The first line, with `…` for each value.
    pub(super) text: String,
    /// Cause and cure, which the comment above it has.
    pub(super) words: Option<(String, String)>,
}

/// The messages of a file. Cause and cure of a message are in the comment of the error's variant, or in the one above
/// the expression, arm or statement with the text; the cure of an error can also be in its arm of a table:
/// `.cure("…")` or `cure("…")`. Rules are files with findings, which are pairs of a severity and a text.
pub(super) fn messages(text: &str, of_rules: bool) -> syn::Result<Vec<Message>> {
    let file = syn::parse_file(text)?;
    let mut found = Found {
        lines: text.lines().map(str::trim).collect(),
        starts: Vec::new(),
        messages: Vec::new(),
        causes: Vec::new(),
        cures: BTreeMap::new(),
        of_rules,
    };
    found.visit_file(&file);
    for (message, error, cause) in found.causes {
        if let Some(cure) = found.cures.remove(&error) {
            found.messages[message].words = Some((cause, cure));
        }
    }
    Ok(found.messages)
}

struct Found<'a> {
    lines: Vec<&'a str>,
    /// The first lines of what is around, up to the statement.
    starts: Vec<usize>,
    messages: Vec<Message>,
    /// The message, `Enum::Variant` and the cause of each error without a cure in its comment.
    causes: Vec<(usize, String, String)>,
    /// The cures in tables, by `Enum::Variant`.
    cures: BTreeMap<String, String>,
    of_rules: bool,
}

impl<'ast> Found<'ast> {
    fn add(&mut self, text: Option<String>, words: Option<(String, String)>) {
        let text = text.map(|text| fixed_parts(&text));
        let letters = |text: &String| text.chars().filter(|c| c.is_alphabetic()).count();
        if let Some(text) = text.filter(|text| letters(text) >= FEWEST_LETTERS) {
            self.messages.push(Message { text, words });
        }
    }

    /// The words in the comment that ends above the line.
    fn words_above(&self, line: usize) -> Option<(String, String)> {
        let above = self.lines[..line - 1].iter().rev();
        let above = above.map_while(|line| line.strip_prefix("// "));
        let mut comment: Vec<String> = above.map(str::to_owned).collect();
        comment.reverse();
        words(&comment)
    }

    /// Visits the inside of what begins at this place.
    fn inside(&mut self, start: proc_macro2::Span, visit: impl FnOnce(&mut Self)) {
        self.starts.push(start.start().line);
        visit(self);
        self.starts.pop();
    }

    /// The text of `#[error(...)]`, with the words of the comment above it.
    fn error(&mut self, name: String, attributes: &[Attribute]) {
        let error = attributes
            .iter()
            .find(|attribute| attribute.path().is_ident("error"));
        let text = error.and_then(|error| {
            let first = |input: syn::parse::ParseStream<'_>| {
                let text = input.parse::<LitStr>()?;
                input.parse::<proc_macro2::TokenStream>()?;
                Ok(text.value())
            };
            error.parse_args_with(first).ok()
        });
        let comment = comment(attributes);
        let words = words(&comment);
        let (has_words, place) = (words.is_some(), self.messages.len());
        self.add(text, words);
        if !has_words && !comment.is_empty() && place < self.messages.len() {
            self.causes.push((place, name, comment.join(" ")));
        }
    }

    /// The message among the arguments of a call; a severity may come before its text.
    fn said<'a>(&mut self, mut arguments: impl Iterator<Item = &'a Expr>) {
        let first = arguments.next();
        let text = if first.is_some_and(is_severity) { arguments.next() } else { first };
        let Some(expr) = text else { return };
        self.starts.push(expr.span().start().line);
        let words = self
            .starts
            .iter()
            .rev()
            .find_map(|line| self.words_above(*line));
        self.add(literal(expr), words);
        self.starts.pop();
    }
}

impl<'ast> Visit<'ast> for Found<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let of_tests = |attribute: &Attribute| {
            attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Ident>()
                    .is_ok_and(|word| word == "test")
        };
        if !module.attrs.iter().any(of_tests) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.error(item.ident.to_string(), &item.attrs);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.error(item.ident.to_string(), &item.attrs);
        for variant in &item.variants {
            self.error(format!("{}::{}", item.ident, variant.ident), &variant.attrs);
        }
    }

    /// A block has messages of its own.
    fn visit_block(&mut self, block: &'ast syn::Block) {
        let around = std::mem::take(&mut self.starts);
        visit::visit_block(self, block);
        self.starts = around;
    }

    fn visit_stmt(&mut self, stmt: &'ast syn::Stmt) {
        self.inside(stmt.span(), |found| visit::visit_stmt(found, stmt));
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        self.inside(expr.span(), |found| visit::visit_expr(found, expr));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some(cure) = cure(&arm.body) {
            for error in errors(&arm.pat) {
                self.cures.insert(error, sentence(&cure));
            }
        }
        self.inside(arm.span(), |found| visit::visit_arm(found, arm));
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if ["error", "warning", "info", "fault"]
            .iter()
            .any(|name| call.method == name)
        {
            self.said(call.args.iter());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let path = path(&call.func);
        let says = ["log::error", "log::info", "Finding::of_machine", "fault"]
            .iter()
            .any(|name| path == *name || path.ends_with(&format!("::{name}")));
        let of_rules = path == "error" || call.args.first().is_some_and(is_severity);
        if says || self.of_rules && of_rules {
            self.said(call.args.iter());
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_tuple(&mut self, tuple: &'ast syn::ExprTuple) {
        if self.of_rules && tuple.elems.first().is_some_and(is_severity) {
            self.said(tuple.elems.iter());
        }
        visit::visit_expr_tuple(self, tuple);
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        self.starts.push(field.span().start().line);
        if self.of_rules && matches!(&field.member, syn::Member::Named(name) if name == "what") {
            self.said(std::iter::once(&field.expr));
        }
        self.starts.pop();
        self.inside(field.span(), |found| visit::visit_field_value(found, field));
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        // A macro with a syntax of its own has no message.
        let Ok(arguments) = arguments(called) else {
            return;
        };
        if called.path.is_ident("eprintln") {
            self.said(arguments.iter());
        }
        arguments
            .iter()
            .for_each(|argument| self.visit_expr(argument));
    }
}

fn arguments(called: &syn::Macro) -> syn::Result<Vec<Expr>> {
    let parsed = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(called.tokens.clone())?;
    Ok(parsed.into_iter().collect())
}

/// A path as it is written; empty for other expressions.
fn path(expr: &Expr) -> String {
    let Expr::Path(path) = expr else {
        return String::new();
    };
    names(&path.path)
}

fn names(path: &syn::Path) -> String {
    let names: Vec<String> = path
        .segments
        .iter()
        .map(|part| part.ident.to_string())
        .collect();
    names.join("::")
}

/// The `Enum::Variant` of each error that a pattern takes.
fn errors(pattern: &syn::Pat) -> Vec<String> {
    match pattern {
        syn::Pat::Path(pattern) => vec![names(&pattern.path)],
        syn::Pat::Struct(pattern) => vec![names(&pattern.path)],
        syn::Pat::TupleStruct(pattern) => vec![names(&pattern.path)],
        syn::Pat::Or(either) => either.cases.iter().flat_map(errors).collect(),
        _ => Vec::new(),
    }
}

/// The text of `.cure("…")` or `cure("…")` at the end of an expression, with `NODE` for `{node}`.
fn cure(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Block(block) => match block.block.stmts.last()? {
            syn::Stmt::Expr(expr, None) => cure(expr),
            _ => None,
        },
        Expr::MethodCall(call) if call.method == "cure" => literal(call.args.first()?),
        Expr::Call(call) if path(&call.func) == "cure" => {
            Some(with_names(&literal(call.args.first()?)?))
        }
        _ => None,
    }
}

/// The text with `NODE` for `{node}`.
fn with_names(text: &str) -> String {
    let mut parts = text.split('{');
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or((part, ""));
        named += &name.to_uppercase();
        named += rest;
    }
    named
}

/// The names of programs stay in small letters.
fn sentence(text: &str) -> String {
    if text.starts_with("gpufrac") {
        return format!("{text}.");
    }
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(['.']).collect()
}

fn is_severity(expr: &Expr) -> bool {
    path(expr).starts_with("Severity::")
}

/// The literal text of an expression, which may be formatted, borrowed or converted.
pub(super) fn literal(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        Expr::Reference(reference) => literal(&reference.expr),
        Expr::MethodCall(call) => literal(&call.receiver),
        Expr::Macro(called) if called.mac.path.is_ident("format") => {
            arguments(&called.mac).ok()?.first().and_then(literal)
        }
        _ => None,
    }
}

/// The first line of a text, with `…` for each value.
fn fixed_parts(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let line = line.replace("{{", "\u{1}").replace("}}", "\u{2}");
    let mut parts = line.split('{');
    let mut fixed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        fixed.push('…');
        fixed.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    fixed.replace('\u{1}', "{").replace('\u{2}', "}")
}

/// The lines of a documentation comment.
pub(super) fn comment(attributes: &[Attribute]) -> Vec<String> {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(doc) if doc.path.is_ident("doc") => literal(&doc.value),
            _ => None,
        });
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Cause and cure of a comment that ends with a cure.
fn words(comment: &[String]) -> Option<(String, String)> {
    let comment = comment.join(" ");
    let (cause, cure) = comment.split_once(CURE)?;
    Some((cause.trim_end().to_owned(), cure.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_the_programs_write_them() {
        let code = r#"
            enum E {
                /// A cause
                /// in lines.
                /// Cure: a
                /// cure.
                #[error("`{}`: {{a}} \"b\" \
                     failed: {source}", x)]
                A,
                #[error("{0}")]
                B,
                /// Another cause.
                #[error("no GPU is free")]
                C,
                /// A third cause.
                #[error("the GPU is busy")]
                D { gpu: u32 },
            }
            fn f() {
                match e {
                    E::C => { new(Hold).cure("wait for one") }
                    E::D { gpu } | E::Other { gpu } => cure(format!("reset GPU {gpu}, or wait")),
                    _ => other,
                }
                // Above a statement. Cure: the
                // statement's.
                log.error(format!("no {what} here"));
                fault(Severity::Error, "nothing is counted", fix);
                a.extend(vec![(Severity::Warning, format!("{a} is missing"))]);
                Part { what: "not seen".into() };
            }
            #[cfg(test)]
            mod tests { fn f() { log.error("of a test only"); } }"#;
        let found = messages(code, true).expect("the code can be read");
        let texts: Vec<&str> = found.iter().map(|message| message.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "`…`: {a} \"b\" failed: …",
                "no GPU is free",
                "the GPU is busy",
                "no … here",
                "nothing is counted",
                "… is missing",
                "not seen"
            ]
        );
        let words = ("A cause in lines.".to_owned(), "a cure.".to_owned());
        assert_eq!(found[0].words, Some(words));
        let words = ("Another cause.".to_owned(), "Wait for one.".to_owned());
        assert_eq!(found[1].words, Some(words));
        let words = (
            "A third cause.".to_owned(),
            "Reset GPU GPU, or wait.".to_owned(),
        );
        assert_eq!(found[2].words, Some(words));
        let words = (
            "Above a statement.".to_owned(),
            "the statement's.".to_owned(),
        );
        assert_eq!(found[3].words, Some(words));
        assert_eq!(found[4].words, None);
        assert_eq!(
            messages(code, false).expect("the code can be read").len(),
            5
        );
    }
}
