//! Stable aliases for all that names a device: `GPU-1`, `MIG-3`, `PCI-1`.

use std::cell::RefCell;

/// The aliases of a run, in the order of their first use.
#[derive(Debug, Default)]
pub struct Aliases {
    known: RefCell<Vec<(String, String)>>,
}

impl Aliases {
    /// The alias of a UUID or of an address on the PCI bus; `kind` is its first word.
    pub fn of(&self, kind: &str, real: &str) -> String {
        let mut known = self.known.borrow_mut();
        if let Some((_, alias)) = known.iter().find(|(text, _)| text == real) {
            return alias.clone();
        }
        let same = |(_, alias): &&(String, String)| alias.starts_with(kind);
        let alias = format!("{kind}-{}", known.iter().filter(same).count() + 1);
        known.push((real.to_owned(), alias.clone()));
        alias
    }

    /// A text in which every known name is replaced by its alias, and every other UUID gets one.
    pub fn scrub(&self, text: &str) -> String {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        for word in text.split(|c| !is_part(c)) {
            if uuid_version(word).is_some() {
                self.of(word.split('-').next().unwrap_or("UUID"), word);
            }
        }
        let known = self.known.borrow();
        let replace = |text: String, (real, alias): &(String, String)| text.replace(real, alias);
        known.iter().fold(text.to_owned(), replace)
    }
}

/// The version digit of a UUID in text, with or without a prefix such as `MIG-`.
pub fn uuid_version(uuid: &str) -> Option<char> {
    let groups: Vec<&str> = uuid.rsplit('-').take(5).collect();
    match groups[..] {
        [last, _, third, _, first] if (last.len(), third.len(), first.len()) == (12, 4, 8) => {
            third.chars().next()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_alias() {
        let aliases = Aliases::default();
        assert_eq!(aliases.of("MIG", "MIG-aa"), "MIG-1");
        assert_eq!(aliases.of("GPU", "GPU-aa"), "GPU-1");
        assert_eq!(aliases.of("MIG", "MIG-bb"), "MIG-2");
        assert_eq!(aliases.of("MIG", "MIG-aa"), "MIG-1");
        assert_eq!(
            aliases.scrub("GPU 0 (GPU-aa), MIG-bb"),
            "GPU 0 (GPU-1), MIG-2"
        );
        let unknown = "on MIG-0b8e6f7c-5a0e-5d0f-9b1f-7c6a6f3c2d11!";
        assert_eq!(aliases.scrub(unknown), "on MIG-3!");
    }

    #[test]
    fn the_version_digit_is_read() {
        let uuid = "MIG-0b8e6f7c-5a0e-5d0f-9b1f-7c6a6f3c2d11";
        assert_eq!(uuid_version(uuid), Some('5'));
        assert_eq!(uuid_version("MIG-GPU-1/3/0"), None);
        assert_eq!(uuid_version(""), None);
    }
}
