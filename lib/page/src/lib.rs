//! Everything that people read is written here: quantities and times as words, tables for a terminal, pages and their
//! charts. [`page::Page`] is a document that is printed as text or as a page.
//!
//! A page loads nothing: no script, no font, no picture, no style of another file. It can be read on a phone, in print
//! and on a dark screen. Texts of users and admins are escaped by [`html::Html`], the only writer of pages.
#![forbid(unsafe_code)]

pub mod chart;
pub mod html;
pub mod page;
pub mod table;
pub mod words;
