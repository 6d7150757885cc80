//! Who may see the dashboard: links that are good for one login, and sessions of two secrets.
//!
//! Owns        the current link, the links spent lately, the sessions.
//! Invariants  DASH-1  a link opens at most one session, within [`LINK_LIFETIME`].
//!             DASH-2  a session is used with both of its secrets. The cookie alone is not enough: browsers send it to every port of this
//!                     host (RFC 6265, 8.5). The tab's token alone is not enough either: an injected script could read it.
//!             DASH-3  a link used twice ends the session that it opened: two programs had it, and which of them is the operator's is unknown.
//!
//! Wrong links are not limited: at 256 bits a limit would only lock the operator out.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq;

/// How long a link may be used.
pub const LINK_LIFETIME: Duration = Duration::from_secs(60);
/// How long a session lasts without a page that is open.
pub const IDLE_LIFETIME: Duration = Duration::from_secs(15 * 60);
/// How long a session lasts in all: a working day.
pub const SESSION_LIFETIME: Duration = Duration::from_secs(8 * 3600);
/// Sessions at once; another one ends the oldest.
const MAX_SESSIONS: usize = 8;
/// Spent links that are still recognised.
const MAX_SPENT: usize = 32;

/// 256 random bits. Shown nowhere but where they are given out: no `Debug`, compared in constant time.
#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Another one.
    pub fn random() -> Self {
        Self(rand::random())
    }
    /// 43 characters that need no escaping in a URL, a cookie, or a header.
    pub fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }
    /// Reads what [`Secret::text`] wrote.
    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        // Longer texts are refused before they are decoded.
        let read = URL_SAFE_NO_PAD.decode_slice(text.get(..43).filter(|_| text.len() == 43)?, &mut bytes).ok()?;
        (read == bytes.len()).then_some(Self(bytes))
    }
    fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// What a login gives the browser.
pub struct Session {
    pub cookie: Secret,
    pub tab: Secret,
    /// With it the server proves that it is the one that was logged in to: the browser never sends it. Another process that takes the
    /// port after this one has ended does not know it.
    pub proof: Secret,
}

/// Why a link opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is none, or one of another process.
    Unknown,
    /// Its time is over.
    Expired,
    /// It was used before: the session that it opened has ended. `ended`: just now.
    Spent { ended: bool },
}

struct Open {
    cookie: Secret,
    tab: Secret,
    proof: Secret,
    since: Instant,
    seen: Instant,
}

impl Open {
    fn lives(&self, now: Instant) -> bool {
        now.duration_since(self.since) < SESSION_LIFETIME && now.duration_since(self.seen) < IDLE_LIFETIME
    }
}

/// Links and sessions. All times are the caller's.
#[derive(Default)]
pub struct Access {
    link: Option<(Secret, Instant)>,
    /// With the cookie of the session that each one opened.
    spent: Vec<(Secret, Secret)>,
    sessions: Vec<Open>,
}

impl Access {
    /// Makes a link; a former one that was not used ends.
    pub fn new_link(&mut self, now: Instant) -> Secret {
        let link = Secret::random();
        self.link = Some((link.clone(), now));
        link
    }

    /// Opens a session with the text of a link.
    pub fn log_in(&mut self, offered: &str, now: Instant) -> Result<Session, Refused> {
        let offered = Secret::parse(offered).ok_or(Refused::Unknown)?;
        if let Some(at) = self.spent.iter().position(|(link, _)| link.is(&offered)) {
            let cookie = self.spent[at].1.clone();
            let before = self.sessions.len();
            self.sessions.retain(|session| !session.cookie.is(&cookie));
            return Err(Refused::Spent { ended: self.sessions.len() < before });
        }
        let (link, made) = self.link.take_if(|(link, _)| link.is(&offered)).ok_or(Refused::Unknown)?;
        if now.duration_since(made) >= LINK_LIFETIME {
            return Err(Refused::Expired);
        }
        let session = Session { cookie: Secret::random(), tab: Secret::random(), proof: Secret::random() };
        self.spent.push((link, session.cookie.clone()));
        if self.spent.len() > MAX_SPENT {
            self.spent.remove(0);
        }
        self.sessions.retain(|session| session.lives(now));
        if self.sessions.len() == MAX_SESSIONS {
            self.sessions.remove(0);
        }
        let (cookie, tab, proof) = (session.cookie.clone(), session.tab.clone(), session.proof.clone());
        self.sessions.push(Open { cookie, tab, proof, since: now, seen: now });
        Ok(session)
    }

    /// The proof of the session that lives and of which these are the two secrets. It counts as used now.
    pub fn admit(&mut self, cookie: &str, tab: &str, now: Instant) -> Option<Secret> {
        let (cookie, tab) = (Secret::parse(cookie)?, Secret::parse(tab)?);
        let session = self.sessions.iter_mut().find(|s| s.cookie.is(&cookie) && s.tab.is(&tab) && s.lives(now))?;
        session.seen = now;
        Some(session.proof.clone())
    }

    /// Ends every session.
    pub fn log_out(&mut self) {
        self.sessions.clear();
    }

    /// Whether anyone is logged in.
    pub fn in_use(&self, now: Instant) -> bool {
        self.sessions.iter().any(|session| session.lives(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn opened() -> (Access, String, Session, Instant) {
        let (mut access, now) = (Access::default(), Instant::now());
        let link = access.new_link(now).text();
        let session = access.log_in(&link, now).ok().unwrap();
        (access, link, session, now)
    }

    #[test]
    fn link_opens_one_session_within_its_lifetime() {
        let (mut access, now) = (Access::default(), Instant::now());
        let link = access.new_link(now).text();
        assert_eq!(link.len(), 43);
        assert_eq!(access.log_in(&link, now + LINK_LIFETIME).err(), Some(Refused::Expired));
        assert_eq!(access.log_in(&link, now).err(), Some(Refused::Unknown), "it is gone");
        let link = access.new_link(now).text();
        assert!(access.log_in(&link, now + LINK_LIFETIME - Duration::from_millis(1)).is_ok());
        for other in ["", "x", &link[..42], &format!("{link}A"), &"é".repeat(22), &Secret::random().text()] {
            assert_eq!(access.log_in(other, now).err(), Some(Refused::Unknown), "{other}");
        }
    }

    #[test]
    fn newer_link_replaces_one_that_was_not_used() {
        let (mut access, now) = (Access::default(), Instant::now());
        let (first, second) = (access.new_link(now).text(), access.new_link(now).text());
        assert_eq!(access.log_in(&first, now).err(), Some(Refused::Unknown));
        assert!(access.log_in(&second, now).is_ok());
    }

    #[test]
    fn second_use_of_a_link_ends_the_session_it_opened() {
        let (mut access, link, session, now) = opened();
        let other = access.new_link(now).text();
        let other = access.log_in(&other, now).ok().unwrap();
        assert_eq!(access.log_in(&link, now).err(), Some(Refused::Spent { ended: true }));
        assert_eq!(access.log_in(&link, now).err(), Some(Refused::Spent { ended: false }), "reported once");
        assert!(access.admit(&session.cookie.text(), &session.tab.text(), now).is_none());
        assert!(
            access.admit(&other.cookie.text(), &other.tab.text(), now).is_some(),
            "another link's session lives on"
        );
    }

    #[test]
    fn session_needs_both_secrets_of_the_same_login() {
        let (mut access, _, session, now) = opened();
        let (cookie, tab) = (session.cookie.text(), session.tab.text());
        let link = access.new_link(now).text();
        let other = access.log_in(&link, now).ok().unwrap();
        assert!(access.admit(&cookie, &tab, now).is_some());
        for (cookie, tab) in [
            (&cookie, &other.tab.text()),
            (&other.cookie.text(), &tab),
            (&tab, &cookie),
            (&cookie, &cookie),
            (&String::new(), &tab),
        ] {
            assert!(access.admit(cookie, tab, now).is_none());
        }
        access.log_out();
        assert!(access.admit(&cookie, &tab, now).is_none() && !access.in_use(now));
    }

    #[test]
    fn session_ends_unused_and_after_a_working_day() {
        let (mut access, _, session, now) = opened();
        let (cookie, tab) = (session.cookie.text(), session.tab.text());
        let step = IDLE_LIFETIME - Duration::from_secs(1);
        let mut at = now;
        while at + step < now + SESSION_LIFETIME {
            at += step;
            assert!(access.admit(&cookie, &tab, at).is_some(), "used {:?} after the login", at - now);
        }
        assert!(access.admit(&cookie, &tab, now + SESSION_LIFETIME).is_none());
        let (mut access, _, session, now) = opened();
        assert!(access.admit(&session.cookie.text(), &session.tab.text(), now + IDLE_LIFETIME).is_none());
    }

    #[test]
    fn sessions_and_spent_links_are_bounded() {
        let (mut access, now) = (Access::default(), Instant::now());
        let sessions: Vec<Session> = (0..40)
            .map(|_| {
                let link = access.new_link(now).text();
                access.log_in(&link, now).ok().unwrap()
            })
            .collect();
        assert_eq!((access.sessions.len(), access.spent.len()), (MAX_SESSIONS, MAX_SPENT));
        let live = sessions.iter().filter(|s| access.admit(&s.cookie.text(), &s.tab.text(), now).is_some()).count();
        assert_eq!(live, MAX_SESSIONS);
    }

    proptest! {
        /// Whatever is done, a spent link never opens anything, and only the two secrets of one login are admitted.
        #[test]
        fn spent_links_never_open_and_secrets_never_mix(steps in prop::collection::vec((0u8..4, 0u64..400), 1..60)) {
            let (mut access, mut now) = (Access::default(), Instant::now());
            let (mut links, mut spent, mut sessions) = (Vec::<String>::new(), Vec::<String>::new(), Vec::<Session>::new());
            for (step, seconds) in steps {
                now += Duration::from_secs(seconds);
                match step {
                    0 => links.push(access.new_link(now).text()),
                    1 => if let Some(link) = links.pop() {
                        if let Ok(session) = access.log_in(&link, now) {
                            sessions.push(session);
                        }
                        spent.push(link);
                    },
                    2 => for link in &spent {
                        prop_assert!(access.log_in(link, now).is_err());
                    },
                    _ => for (i, one) in sessions.iter().enumerate() {
                        for (j, other) in sessions.iter().enumerate() {
                            prop_assert!(i == j || access.admit(&one.cookie.text(), &other.tab.text(), now).is_none());
                        }
                    },
                }
                prop_assert!(access.sessions.len() <= MAX_SESSIONS && access.spent.len() <= MAX_SPENT);
            }
        }
    }
}
