//! Reading, printing and ordering of fractions.

use proptest::prelude::*;

use super::*;

fn f(text: &str) -> Fraction {
    Fraction::parse(text).unwrap()
}

#[test]
fn reads_what_people_write() {
    for (text, numerator, denominator) in [
        ("0.25", 1, 4),
        (".25", 1, 4),
        ("0.250000", 1, 4),
        ("1", 1, 1),
        ("1.0", 1, 1),
        ("01.0", 1, 1),
        ("0.000001", 1, 1_000_000),
        ("0.999999", 999_999, 1_000_000),
    ] {
        let fraction = Fraction::parse_decimal(text).unwrap();
        assert_eq!(
            (fraction.numerator(), fraction.denominator()),
            (numerator, denominator),
            "{text}"
        );
    }
    assert_eq!(f("1/8"), f("0.125"));
    assert_eq!(f("2/16"), f("0.125"));
}

#[test]
fn refuses_the_rest_for_a_reason() {
    use FractionError::*;
    for (text, error) in [
        ("", Empty),
        ("0", Zero),
        ("0.0", Zero),
        (".000", Zero),
        ("-0.5", Negative),
        ("-1", Negative),
        ("-.5", Negative),
        ("-", NotANumber),
        ("-x", NotANumber),
        ("1.01", OverOne),
        ("2", OverOne),
        ("25", OverOne),
        ("999999999999999999999999999999", OverOne),
        ("0.333333333333333333333333333333", TooFine),
        ("0.0000001", TooFine),
        ("nan", NotPlain),
        ("NaN", NotPlain),
        ("inf", NotPlain),
        ("Infinity", NotPlain),
        ("2.5e-1", NotPlain),
        ("1E0", NotPlain),
        ("0x1", NotPlain),
        ("+0.5", NotPlain),
        (".", NotANumber),
        ("0.2.5", NotPlain),
        ("0,25", NotANumber),
        ("25%", NotANumber),
        (" 0.25", NotANumber),
        ("٠.٢٥", NotANumber),
        ("half", NotANumber),
    ] {
        assert_eq!(Fraction::parse_decimal(text), Err(error), "{text}");
    }
    for text in [
        "1/",
        "/8",
        "1/0",
        "1//8",
        "-1/8",
        "1/8/2",
        "1.0/8",
        "9999999/9999999",
    ] {
        assert!(Fraction::parse(text).is_err(), "{text}");
    }
    assert_eq!(Fraction::parse("9/8"), Err(OverOne));
    // Ratios are for the configuration only.
    assert_eq!(Fraction::parse_decimal("1/8"), Err(NotANumber));
}

#[test]
fn units_round_up() {
    for (text, units) in [
        ("1/8", 13),
        ("0.25", 25),
        ("1/3", 34),
        ("1", 100),
        ("0.000001", 1),
        ("0.01", 1),
        ("0.010001", 2),
    ] {
        assert_eq!(f(text).units(), Units(units), "{text}");
    }
}

#[test]
fn prints_short() {
    for (text, shown) in [
        ("1/4", "0.25"),
        ("1/8", "0.125"),
        ("1", "1"),
        ("1/7", "0.143"),
        ("1/3", "0.334"),
        ("0.2", "0.2"),
        ("0.999999", "0.999999"),
    ] {
        assert_eq!(f(text).to_string(), shown);
    }
}

#[test]
fn each_printed_fraction_can_be_requested() {
    assert!(f("1/7").covers(f("0.143")));
    assert!(f("1/7").covers(f("0.142857")));
    assert!(!f("1/7").covers(f("0.144")));
    assert!(f("1/4").covers(f("0.25")));
    assert!(!f("1/4").covers(f("0.251")));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        let _ = Fraction::parse(&text);
        let _ = Fraction::parse_decimal(&text);
    }

    #[test]
    fn decimals_and_ratios_round_trip(denominator in 1_u32..5000, part in 0_u32..5000) {
        let fraction = Fraction::new(part % denominator + 1, denominator).unwrap();
        prop_assert_eq!(Fraction::parse(&fraction.ratio()), Ok(fraction));
        let shown = Fraction::parse_decimal(&fraction.to_string()).unwrap();
        // The printed number is at least the fraction, and as close as three decimals allow.
        prop_assert!(shown >= fraction);
        prop_assert!(fraction.covers(shown));
        let units = fraction.units().0;
        let (n, d) = (u64::from(fraction.numerator()), u64::from(fraction.denominator()));
        prop_assert!(u64::from(units) * d >= 100 * n);
        prop_assert!(u64::from(units - 1) * d < 100 * n);
    }

    #[test]
    fn order_is_that_of_the_numbers(a in 1_u32..1000, b in 1_u32..1000, c in 1_u32..1000, d in 1_u32..1000) {
        let (x, y) = (Fraction::new(a.min(b), a.max(b)).unwrap(), Fraction::new(c.min(d), c.max(d)).unwrap());
        let left = u64::from(x.numerator()) * u64::from(y.denominator());
        let right = u64::from(y.numerator()) * u64::from(x.denominator());
        prop_assert_eq!(x.cmp(&y), left.cmp(&right));
        prop_assert_eq!(x == y, left == right);
    }
}
