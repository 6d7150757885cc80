//! Label selectors: `app=web,tier in (front,back),!draft,priority>3`.

use std::collections::{BTreeMap, BTreeSet};

use super::MAX_TERMS;
use crate::status::Status;
use crate::validate::names;

/// All of its requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Present,
    Absent,
    In(BTreeSet<String>),
    /// Also matches if the label is absent.
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    pub(crate) fn parse(text: &str) -> Result<Self, Status> {
        let mut tokens = Tokens { rest: text };
        let mut requirements = Vec::new();
        let bad = |why: String| Status::bad_request(format!("unable to parse the label selector {text:?}: {why}"));
        if tokens.peek() != Token::End {
            loop {
                if requirements.len() == MAX_TERMS {
                    return Err(Status::bad_request(format!("a label selector has at most {MAX_TERMS} requirements")));
                }
                requirements.push(requirement(&mut tokens).map_err(bad)?);
                match tokens.next() {
                    Token::End => break,
                    Token::Sign(",") => {}
                    other => return Err(bad(format!("found {other}, expected a comma"))),
                }
            }
        }
        Ok(Self(requirements))
    }

    pub(crate) fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels.get(&requirement.key)))
    }
}

impl Requirement {
    fn holds(&self, value: Option<&String>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Present => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

fn requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, String> {
    if tokens.peek() == Token::Sign("!") {
        tokens.next();
        return Ok(Requirement { key: key(tokens)?, test: Test::Absent });
    }
    let key = key(tokens)?;
    if matches!(tokens.peek(), Token::End | Token::Sign(",")) {
        return Ok(Requirement { key, test: Test::Present });
    }
    let one = |tokens: &mut Tokens<'_>| value(tokens).map(|value| BTreeSet::from([value]));
    let test = match tokens.next() {
        Token::Sign("=" | "==") => Test::In(one(tokens)?),
        Token::Sign("!=") => Test::NotIn(one(tokens)?),
        Token::Sign(">") => Test::Above(number(tokens)?),
        Token::Sign("<") => Test::Below(number(tokens)?),
        Token::Word("in") => Test::In(set(tokens)?),
        Token::Word("notin") => Test::NotIn(set(tokens)?),
        other => return Err(format!("found {other}, expected one of =, ==, !=, in, notin, >, <")),
    };
    Ok(Requirement { key, test })
}

fn key(tokens: &mut Tokens<'_>) -> Result<String, String> {
    match tokens.next() {
        Token::Word(word) => match names::qualified(word) {
            None => Ok(word.to_owned()),
            Some(rule) => Err(format!("{word:?} is not a label key: {rule}")),
        },
        other => Err(format!("found {other}, expected a key")),
    }
}

/// A value may be empty: then its token is missing.
fn value(tokens: &mut Tokens<'_>) -> Result<String, String> {
    match tokens.peek() {
        Token::Word(word) => {
            tokens.next();
            match names::label_value(word) {
                None => Ok(word.to_owned()),
                Some(rule) => Err(format!("{word:?} is not a label value: {rule}")),
            }
        }
        Token::End | Token::Sign("," | ")") => Ok(String::new()),
        other => Err(format!("found {other}, expected a value")),
    }
}

fn number(tokens: &mut Tokens<'_>) -> Result<i64, String> {
    let text = value(tokens)?;
    text.parse().map_err(|_| format!("{text:?} is not an integer"))
}

fn set(tokens: &mut Tokens<'_>) -> Result<BTreeSet<String>, String> {
    if tokens.next() != Token::Sign("(") {
        return Err("a set of values must be in parentheses".to_owned());
    }
    let mut values = BTreeSet::new();
    loop {
        values.insert(value(tokens)?);
        match tokens.next() {
            Token::Sign(")") => return Ok(values),
            Token::Sign(",") => {}
            other => return Err(format!("found {other}, expected a comma or a closing parenthesis")),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Sign(&'a str),
    End,
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Token::Word(text) | Token::Sign(text) => write!(f, "{text:?}"),
            Token::End => f.write_str("the end"),
        }
    }
}

struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    const SIGNS: &'static str = "=!<>(),";

    fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() {
            return Token::End;
        }
        for sign in ["==", "!="] {
            if let Some(rest) = self.rest.strip_prefix(sign) {
                self.rest = rest;
                return Token::Sign(sign);
            }
        }
        let ends = |c: char| Self::SIGNS.contains(c) || c.is_whitespace();
        let length = match self.rest.find(ends) {
            Some(0) => 1,
            Some(length) => length,
            None => self.rest.len(),
        };
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        if Self::SIGNS.contains(text) { Token::Sign(text) } else { Token::Word(text) }
    }
    fn peek(&self) -> Token<'a> {
        Tokens { rest: self.rest }.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        LabelSelector::parse(selector).unwrap_or_else(|e| panic!("{selector}: {}", e.message)).matches(&labels)
    }

    #[test]
    fn number_of_selector_terms_is_bounded() {
        let many = |count| vec!["!a"; count].join(",");
        assert!(LabelSelector::parse(&many(MAX_TERMS)).is_ok());
        assert!(LabelSelector::parse(&many(MAX_TERMS + 1)).is_err());
    }

    #[test]
    fn label_selector_grammar_is_supported() {
        let web = [("app", "web"), ("tier", "front"), ("example.com/weight", "7"), ("none", "")];
        for yes in [
            "",
            " ",
            "app",
            "app=web",
            "app==web",
            "app = web , tier = front",
            "app!=db",
            "missing!=x",
            "!missing",
            "! missing",
            "tier in (front,back)",
            "tier in ( back , front )",
            "tier notin (back)",
            "missing notin (a)",
            "example.com/weight>6",
            "example.com/weight < 8",
            "none=",
            "none in ()",
            "none in (a,)",
            "none=,app=web",
            "app,tier,!draft",
        ] {
            assert!(matches(yes, &web), "{yes}");
        }
        for no in [
            "app=db",
            "missing",
            "missing=x",
            "!app",
            "tier in (back)",
            "tier notin (front)",
            "app>1",
            "example.com/weight>7",
            "none!=",
            "app=web,tier=back",
        ] {
            assert!(!matches(no, &web), "{no}");
        }
    }

    #[test]
    fn malformed_label_selector_is_refused() {
        for bad in [
            ",",
            "=web",
            "app=web,",
            "app=web tier=front",
            "app in",
            "app in web",
            "app in (a",
            "app>x",
            "app=a b",
            "app!",
            "!",
            "a/b/c=d",
            "-x=1",
            "app=-a",
            "app===b",
            "(",
            "app ! x",
        ] {
            let refused = LabelSelector::parse(bad);
            assert_eq!(refused.map_err(|status| status.reason.code()).err(), Some(400), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn label_selector_parser_never_panics(text in ".{0,80}") {
            let _may_refuse = LabelSelector::parse(&text);
        }
        #[test]
        fn a_label_selects_itself(key in "[a-z]{1,8}", value in "[a-z0-9]{0,8}") {
            let (equal, unequal) = (format!("{key}={value}"), format!("{key}!={value}"));
            prop_assert!(matches(&equal, &[(&key, &value)]));
            prop_assert!(!matches(&unequal, &[(&key, &value)]));
        }
    }
}
