//! Node names, written short.

/// Width, first and last number of a run; None for a name without number.
type Numbers = Option<(usize, u64, u64)>;

/// `gn01,gn02,gn03,login` as `gn[01-03],login`. The order stays.
pub fn short(names: &[&str]) -> String {
    let mut runs: Vec<(&str, Numbers)> = Vec::new();
    for name in names {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        let Ok(number) = number.parse::<u64>() else {
            runs.push((name, None));
            continue;
        };
        match runs.last_mut() {
            Some((known, Some((width, _, last))))
                if *known == prefix && *width == digits && *last + 1 == number =>
            {
                *last = number;
            }
            _ => runs.push((prefix, Some((digits, number, number)))),
        }
    }
    let texts: Vec<String> = runs
        .iter()
        .map(|(prefix, numbers)| match *numbers {
            None => (*prefix).to_owned(),
            Some((width, first, last)) if first == last => format!("{prefix}{first:0width$}"),
            Some((width, first, last)) => format!("{prefix}[{first:0width$}-{last:0width$}]"),
        })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn runs_of_numbers_become_ranges() {
        assert_eq!(short(&["gn01", "gn02", "gn03"]), "gn[01-03]");
        assert_eq!(short(&["gn9", "gn10", "gn12"]), "gn9,gn10,gn12");
        assert_eq!(short(&["a", "b1", "b2", "c"]), "a,b[1-2],c");
        assert_eq!(short(&["7"]), "7");
        assert_eq!(short(&[]), "");
    }
}
