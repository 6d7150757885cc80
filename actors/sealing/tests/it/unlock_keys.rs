use muster_sealing::{BadUnlockKey, UnlockKey};
use proptest::prelude::*;

#[test]
fn unlock_keys_are_read_as_they_were_printed() {
    for _ in 0..200 {
        let key = UnlockKey::new();
        let text = key.to_text();
        assert_eq!(text.len(), "MSTR-UNLOCK-1-".len() + 50 + 1 + 4);
        assert_eq!(UnlockKey::parse(&text), Ok(key.clone()));
        assert_eq!(UnlockKey::parse(&format!("  {}\n", text.to_uppercase())), Ok(key));
    }
    assert_ne!(UnlockKey::new(), UnlockKey::new());
}

#[test]
fn unlock_keys_are_hidden_from_debug() {
    let key = UnlockKey::new();
    let shown = format!("{key:?} {:?}", Some(&key));
    assert_eq!(shown, "<unlock key> Some(<unlock key>)");
}

/// SEAL-5. Every single mistyped digit, and every swap of two neighbours, is a typing error.
#[test]
fn typing_errors_are_distinguished_from_wrong_keys() {
    let text = UnlockKey::new().to_text();
    let digits: Vec<char> = text.chars().collect();
    let from = "MSTR-UNLOCK-1-".len();
    let wrong = |text: String| UnlockKey::parse(&text).unwrap_err();
    for at in (from..digits.len()).filter(|at| digits[*at] != '-') {
        for other in "0123456789abcdefghijklmnopqrstuvwxyz".chars().filter(|c| *c != digits[at]) {
            let mut typed = digits.clone();
            typed[at] = other;
            assert_eq!(wrong(typed.into_iter().collect()), BadUnlockKey::Check);
        }
        let mut typed = digits.clone();
        typed.swap(at - 1, at);
        if typed != digits && digits[at - 1] != '-' {
            assert_eq!(wrong(typed.into_iter().collect()), BadUnlockKey::Check);
        }
    }
    assert_eq!(wrong(text[..text.len() - 1].to_owned()), BadUnlockKey::Form);
    assert_eq!(wrong(text.replace("-1-", "-2-")), BadUnlockKey::Version);
    assert_eq!(wrong(text.replace("-1-", "-x-")), BadUnlockKey::Form);
    assert_eq!(wrong("SWMKEY-1-abc".to_owned()), BadUnlockKey::Form);
    assert_eq!(wrong(String::new()), BadUnlockKey::Form);
}

proptest! {
    #[test]
    fn any_text_is_parsed_without_panic(text in "\\PC{0,80}", tail in "[0-9a-z-]{0,60}") {
        let _either = UnlockKey::parse(&text);
        let _either = UnlockKey::parse(&format!("MSTR-UNLOCK-1-{tail}"));
    }
}
