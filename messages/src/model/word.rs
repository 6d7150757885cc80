//! Words of the contract that travel as text: in JSON, in the log, and between releases.
//!
//! A list of such words is a plain enum: made by [`words!`], given its words by [`words_of!`] or, in `base`, made by a table of its own ([`ErrorCode`]). Where a word arrives from another process its type is [`Word`]:
//! a newer release may send one that this release does not know, and it must still be stored, shown and passed on unchanged.
//! Serialization is that of a string, in JSON and in bincode alike.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base::ErrorCode;

/// A fixed list of words.
pub trait Words: Copy {
    /// The word, for scripts.
    fn text(self) -> &'static str;
    /// The value with this word.
    fn of(text: &str) -> Option<Self>;
}

/// Defines an enum with its words. A last variant `Variant(Inner)` adds all the words of another list.
macro_rules! words {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$about:meta])* $variant:ident => $text:literal,)* }
        $({ $(#[$others:meta])* $held:ident($inner:ty) })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$about])* $variant,)*
            $($(#[$others])* $held($inner),)?
        }
        $crate::model::word::words_of!($name { $($variant => $text,)* } $({ $held($inner) })?);
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::model::Words::text(*self))
            }
        }
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::model::Words::text(*self))
            }
        }
    };
}

/// Gives its words to an enum that is defined by itself, because it also travels as a number.
macro_rules! words_of {
    ($name:ident { $($variant:ident => $text:literal,)* } $({ $held:ident($inner:ty) })?) => {
        impl $crate::model::Words for $name {
            fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                    $(Self::$held(word) => word.text(),)?
                }
            }
            fn of(text: &str) -> Option<Self> {
                match text {
                    $($text => Some(Self::$variant),)*
                    _ => None $(.or_else(|| <$inner as $crate::model::Words>::of(text).map(Self::$held)))?,
                }
            }
        }
        $crate::model::word::all_words!($name $($variant)* $(; $held)?);
    };
}

/// The list of an enum's variants, if they have no content.
macro_rules! all_words {
    ($name:ident $($variant:ident)*) => {
        impl $name {
            /// All of them, in the order of their definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }
    };
    ($name:ident $($variant:ident)* ; $held:ident) => {};
}

pub(crate) use {all_words, words, words_of};

/// The codes of errors have their words in JSON only: between releases an [`ErrorCode`] travels as a number, a `Word<ErrorCode>` as text.
impl Words for ErrorCode {
    fn text(self) -> &'static str {
        ErrorCode::text(self)
    }
    fn of(text: &str) -> Option<Self> {
        ErrorCode::of(text)
    }
}

/// A word as it was received: a known one, or the text that another release sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<T> {
    Known(T),
    Other(String),
}

impl<T: Words> Word<T> {
    /// The text as it travels.
    pub fn text(&self) -> &str {
        match self {
            Self::Known(word) => word.text(),
            Self::Other(text) => text,
        }
    }
    /// The same word in another list.
    pub fn within<U: Words>(&self) -> Word<U> {
        Word::from(self.text())
    }
    /// The value, if this release knows the word.
    pub fn known(&self) -> Option<T> {
        match self {
            Self::Known(word) => Some(*word),
            Self::Other(_) => None,
        }
    }
}

impl<T: Words> From<T> for Word<T> {
    fn from(word: T) -> Self {
        Self::Known(word)
    }
}
impl<T: Words> From<&str> for Word<T> {
    fn from(text: &str) -> Self {
        T::of(text).map_or_else(|| Self::Other(text.to_owned()), Self::Known)
    }
}
impl<T: Words + PartialEq> PartialEq<T> for Word<T> {
    fn eq(&self, word: &T) -> bool {
        self.known().as_ref() == Some(word)
    }
}
impl<T: Words> fmt::Display for Word<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
impl<T: Words> Serialize for Word<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}
impl<'de, T: Words> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(T::of(&text).map_or(Self::Other(text), Self::Known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{HoldReason, PhaseReason, ReconcilerPhase};
    use crate::wire::{decode, encode};

    #[test]
    fn words_have_the_bytes_of_their_text() {
        let words: [(Word<PhaseReason>, &str); 4] = [
            (PhaseReason::Blockers.into(), "blockers"),
            (PhaseReason::Unneeded.into(), ""),
            (PhaseReason::Held(HoldReason::DigestMismatch).into(), "digest-mismatch"),
            (Word::Other("of-a-newer-release".to_owned()), "of-a-newer-release"),
        ];
        for (word, text) in words {
            let text = text.to_owned();
            assert_eq!(encode(&word), encode(&text));
            assert_eq!(decode::<Word<PhaseReason>>(&encode(&text).unwrap()), Ok(word.clone()));
            let json = serde_json::to_string(&word).unwrap();
            assert_eq!(json, serde_json::to_string(&text).unwrap());
            assert_eq!(serde_json::from_str::<Word<PhaseReason>>(&json).unwrap(), word);
        }
    }

    #[test]
    fn each_word_is_read_as_its_value() {
        for phase in ReconcilerPhase::ALL {
            assert_eq!(ReconcilerPhase::of(phase.text()), Some(*phase));
        }
        for reason in HoldReason::ALL {
            assert_eq!(PhaseReason::of(reason.text()), Some(PhaseReason::Held(*reason)));
        }
    }
}
