//! What follows from the looks at the directory of declarations.
//!
//! Owns        the number of the look in progress, and what the last one found.
//! Inputs      how a look ended; that it takes too long.
//! Outputs     the releases to declare, and what operators should read ([`News`]).
//! Keeps DECLARE-2 for every look.

use muster_reconciler::Declared;

use super::files::{Files, Found, declared};

/// What a look changes.
#[derive(Debug, PartialEq, Eq)]
pub struct News {
    /// What is declared from now on.
    pub declared: Declared,
    /// Other releases than before.
    pub changed: bool,
    /// The faults, if others than before.
    pub faults: Vec<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Looks {
    begun: u64,
    ended: u64,
    found: Found,
}

impl Looks {
    /// The number of the look that begins. One at a time.
    pub fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// A look has ended. `known`: what is declared.
    pub fn ended(&mut self, known: &Declared, looked: Result<&Files, String>) -> News {
        self.ended += 1;
        match looked {
            Ok(files) => {
                let found = declared(files);
                let changed = known.scopes != found.declared.scopes;
                self.take(found, changed)
            }
            Err(why) => self.in_doubt(known, why),
        }
    }

    /// This look has taken too long, unless it has ended.
    pub fn overdue(&mut self, look: u64, known: &Declared, why: String) -> Option<News> {
        (look > self.ended).then(|| self.in_doubt(known, why))
    }

    /// What the last look found.
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Looks completed since the actor started. The command line compares them: after two more, a file written before was read.
    pub fn completed(&self) -> u64 {
        self.ended
    }

    /// DECLARE-2. What is declared stays. Any other scope may be declared, too.
    fn in_doubt(&mut self, known: &Declared, why: String) -> News {
        let declared = Declared { incomplete: true, ..known.clone() };
        self.take(Found { declared, faults: vec![why], ..Found::default() }, false)
    }

    fn take(&mut self, found: Found, changed: bool) -> News {
        let faults = if found.faults == self.found.faults { Vec::new() } else { found.faults.clone() };
        self.found = found;
        News { declared: self.found.declared.clone(), changed, faults }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop() -> Declared {
        let mut declared = Declared::default();
        declared.scopes.insert("shop".to_owned(), Some("1.2.0".parse().unwrap()));
        declared
    }

    /// DECLARE-2.
    #[test]
    fn look_without_an_answer_keeps_what_is_declared() {
        let mut looks = Looks::default();
        assert_eq!(looks.begin(), 1);
        let doubt = Declared { incomplete: true, ..shop() };
        let news = looks.overdue(1, &shop(), "it hangs".to_owned()).expect("it has not ended");
        assert_eq!(news, News { declared: doubt.clone(), changed: false, faults: vec!["it hangs".to_owned()] });
        let again = looks.ended(&doubt, Err("it hangs".to_owned()));
        assert_eq!(again, News { declared: doubt.clone(), changed: false, faults: Vec::new() }, "said once");
        assert_eq!((looks.completed(), looks.overdue(1, &doubt, "it hangs".to_owned())), (1, None));
        assert_eq!(looks.begin(), 2);
        assert!(looks.overdue(2, &doubt, "it hangs".to_owned()).is_some());
    }

    #[test]
    fn look_that_finds_other_releases_says_so() {
        let (mut looks, files) = (Looks::default(), Files::new());
        let empty = |changed| News { declared: Declared::default(), changed, faults: Vec::new() };
        assert_eq!(looks.ended(&shop(), Ok(&files)), empty(true));
        assert_eq!(looks.ended(&Declared::default(), Ok(&files)), empty(false));
        let doubt = Declared { incomplete: true, ..Declared::default() };
        assert_eq!(looks.ended(&doubt, Ok(&files)), empty(false), "the doubt ends, and no release changes");
    }
}
