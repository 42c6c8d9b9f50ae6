//! The library exports every function that clients look up.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "looking up symbols")]

mod common;

use common::SimNode;
use nvidia_ml::symbols::FUNCTIONS;

#[test]
fn every_function_is_exported_and_the_list_is_sorted() {
    assert!(FUNCTIONS.is_sorted());
    let node = SimNode::new(&["T4-16"], &[]);
    // SAFETY: the library does nothing when it is loaded.
    let library = unsafe { libloading::Library::new(node.library()) }.unwrap();
    for name in FUNCTIONS.iter() {
        // SAFETY: the symbol is looked up, and not called.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        assert!(found.is_ok(), "{name} is not exported");
    }
}
