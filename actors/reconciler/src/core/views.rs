//! Which view of a reconciler replaces the one that is published.
//!
//! Inputs      the published view; what the cluster answers.
//! Outputs     the [`Replacement`], and what is wrong with the answer.
//! A view that this build cannot read is one of a later build's definition. The last one is then published without a definition,
//! so that this candidate ends its term and leaves it to others: the definition that it knows is not the one in force.

use muster_messages::wire::RunnerView;
use muster_messages::{ErrorBody, ErrorCode, Revision};
use serde::de::{Deserialize, Deserializer, Error};
use serde_json::Value;

/// What the cluster answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Readable(Box<RunnerView>),
    /// Its revision is enough to wait for the next one.
    Unreadable {
        revision: Revision,
        why: String,
    },
}

impl Answer {
    pub fn revision(&self) -> Revision {
        match self {
            Self::Readable(view) => view.revision,
            Self::Unreadable { revision, .. } => *revision,
        }
    }
}

impl<'de> Deserialize<'de> for Answer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        RunnerView::deserialize(&value).map(|view| Self::Readable(Box::new(view))).or_else(|error| {
            let revision = value.get("revision").map(Revision::deserialize);
            let revision = revision.and_then(Result::ok).ok_or_else(|| D::Error::custom(&error))?;
            Ok(Self::Unreadable { revision, why: format!("this build cannot read the definition: {error}") })
        })
    }
}

/// What becomes of the published view.
#[derive(Clone, Debug, PartialEq)]
pub enum Replacement {
    /// It stays.
    Keep,
    /// This one replaces it.
    View(Box<RunnerView>),
    /// The same without its definition: this build cannot read the one in force.
    GivenUp(Box<RunnerView>),
    /// The reconciler does not exist: no view remains.
    Missing,
}

/// What follows from an answer for the view that is `published`; and what is wrong with the answer, if anything.
pub fn replacement(published: Option<&RunnerView>, answer: Result<Answer, ErrorBody>) -> (Replacement, Option<String>) {
    match answer {
        Ok(Answer::Readable(view)) => {
            // An equally old one may differ: it is another replica's, or of a moment later.
            let newer = published.is_none_or(|published| published.revision <= view.revision);
            let differs = published != Some(&*view);
            (if newer && differs { Replacement::View(view) } else { Replacement::Keep }, None)
        }
        Ok(Answer::Unreadable { revision, why }) => {
            let stale = published.filter(|published| published.revision <= revision && published.definition.is_some());
            let without = stale.map(|view| Box::new(RunnerView { definition: None, ..view.clone() }));
            (without.map_or(Replacement::Keep, Replacement::GivenUp), Some(why))
        }
        Err(body) if body.code == ErrorCode::NotFound => (Replacement::Missing, Some(body.message)),
        // An unreachable cluster changes nothing: its last view holds until there is another.
        Err(body) => (Replacement::Keep, Some(body.message)),
    }
}

#[cfg(test)]
mod tests {
    use muster_messages::wire::GateView;
    use muster_messages::{Action, Definition, Triple};
    use serde_json::json;

    use super::*;

    fn view(revision: u64) -> RunnerView {
        let release = "2.0.0".parse().unwrap();
        RunnerView {
            revision: Revision(revision),
            definition: Some(Definition::new("schema", release, "db", Triple::new(2, 0, 0), Action::Handler)),
            gate: GateView::default(),
            candidates: vec![],
            choice: Default::default(),
            pinned: None,
            timing: Default::default(),
            hold: None,
            path: None,
            blockers: vec![],
            blockers_in_all: 0,
            retries: 0,
            waves: 1,
            steps_done: 0,
            records_runs: true,
        }
    }
    fn readable(view: &RunnerView) -> Result<Answer, ErrorBody> {
        Ok(Answer::Readable(Box::new(view.clone())))
    }
    fn unreadable(revision: u64) -> Result<Answer, ErrorBody> {
        Ok(Answer::Unreadable { revision: Revision(revision), why: "later".to_owned() })
    }
    fn replaced(view: RunnerView) -> (Replacement, Option<String>) {
        (Replacement::View(Box::new(view)), None)
    }
    const STAYS: (Replacement, Option<String>) = (Replacement::Keep, None);

    #[test]
    fn newer_or_different_view_replaces_the_published_one() {
        let known = view(7);
        let other = RunnerView { retries: 1, ..known.clone() };
        assert_eq!(replacement(None, readable(&known)), replaced(known.clone()), "the first");
        assert_eq!(replacement(Some(&known), readable(&view(8))), replaced(view(8)));
        assert_eq!(replacement(Some(&known), readable(&other)), replaced(other), "as old, and different");
        assert_eq!(replacement(Some(&known), readable(&known)), STAYS, "the same");
        assert_eq!(replacement(Some(&known), readable(&view(6))), STAYS, "older");
    }

    #[test]
    fn unreadable_view_takes_the_definition_of_the_published_one() {
        let known = view(7);
        let without = RunnerView { definition: None, ..known.clone() };
        let why = Some("later".to_owned());
        for revision in [7, 8] {
            let given_up = Replacement::GivenUp(Box::new(without.clone()));
            assert_eq!(replacement(Some(&known), unreadable(revision)), (given_up, why.clone()));
        }
        assert_eq!(replacement(Some(&known), unreadable(6)), (Replacement::Keep, why.clone()), "older");
        assert_eq!(replacement(Some(&without), unreadable(8)), (Replacement::Keep, why.clone()), "given up already");
        assert_eq!(replacement(None, unreadable(8)), (Replacement::Keep, why));
    }

    #[test]
    fn only_a_missing_reconciler_withdraws_the_view() {
        let (known, no) = (view(7), Some("no".to_owned()));
        let error = |code| Err(ErrorBody::new(code, "no"));
        for published in [None, Some(&known)] {
            assert_eq!(replacement(published, error(ErrorCode::NotFound)), (Replacement::Missing, no.clone()));
            for code in [ErrorCode::Unreachable, ErrorCode::TimedOut, ErrorCode::Invalid] {
                assert_eq!(replacement(published, error(code)), (Replacement::Keep, no.clone()));
            }
        }
    }

    #[test]
    fn answer_of_a_later_build_is_read_as_far_as_its_revision() {
        let known = view(7);
        let text = serde_json::to_string(&known).unwrap();
        let read: Answer = serde_json::from_str(&text).unwrap();
        assert_eq!((read.revision(), read), (Revision(7), Answer::Readable(Box::new(known))));
        let later: Answer = serde_json::from_value(json!({"revision": 9, "definition": {"action": "dance"}})).unwrap();
        assert_eq!(later.revision(), Revision(9));
        let Answer::Unreadable { why, .. } = later else { panic!("{later:?}") };
        assert!(why.starts_with("this build cannot read the definition: "), "{why}");
        for nothing in [json!({"definition": null}), json!({"revision": "nine"}), json!("no")] {
            assert!(serde_json::from_value::<Answer>(nothing).is_err());
        }
    }
}
