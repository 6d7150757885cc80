//! Licence expressions (SPDX), checked against a list of licences.

/// Whether the list satisfies a package's licence.
pub fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // Old manifests write `MIT/Apache-2.0` for a choice.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { tokens: &tokens, allowed };
    let accepted = reader.choice();
    accepted && reader.tokens.is_empty()
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    allowed: &'a [String],
}

impl Reader<'_> {
    fn take(&mut self, wanted: &str) -> bool {
        let taken = self.tokens.first() == Some(&wanted);
        if taken {
            self.tokens = &self.tokens[1..];
        }
        taken
    }
    fn choice(&mut self) -> bool {
        let mut accepted = self.all();
        while self.take("OR") {
            accepted |= self.all();
        }
        accepted
    }
    fn all(&mut self) -> bool {
        let mut accepted = self.one();
        while self.take("AND") {
            accepted &= self.one();
        }
        accepted
    }
    fn one(&mut self) -> bool {
        if self.take("(") {
            let accepted = self.choice();
            return self.take(")") && accepted;
        }
        let Some((name, rest)) = self.tokens.split_first() else {
            return false;
        };
        self.tokens = rest;
        let mut name = (*name).to_owned();
        if self.take("WITH") {
            let exception = self.tokens.first().copied().unwrap_or("");
            name = format!("{name} WITH {exception}");
            self.tokens = self.tokens.get(1..).unwrap_or_default();
        }
        self.allowed.contains(&name)
    }
}

#[test]
fn or_needs_one_licence_and_and_needs_all() {
    let allowed = ["MIT".to_owned(), "ISC".to_owned()];
    for good in ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "ISC AND (MIT OR GPL-3.0)", "(MIT)"] {
        assert!(is_allowed(good, &allowed), "{good}");
    }
    for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "MIT WITH x", "(MIT", "MIT ISC", "GPL-3.0 AND MIT OR GPL-3.0"] {
        assert!(!is_allowed(bad, &allowed), "{bad}");
    }
}
