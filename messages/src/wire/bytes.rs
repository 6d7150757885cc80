//! Bytes as one value. Serde's way with a `Vec<u8>` is element by element, which took a thirtieth of a loaded leader's processor time. The
//! encoding is the same: a length, and the bytes. (The crate `serde_bytes` does this, and would be another package for every program that
//! uses a published crate.)

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    deserializer.deserialize_byte_buf(Bytes)
}

struct Bytes;

impl Visitor<'_> for Bytes {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }
    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use crate::wire::{decode, encode};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Whole(#[serde(with = "super")] Vec<u8>);

    /// Builds before and after read each other.
    #[test]
    fn bytes_are_encoded_as_their_elements_were() {
        for length in [0, 1, 250, 251, 70_000] {
            let bytes = vec![0xfb_u8; length];
            let (whole, elements) = (encode(&Whole(bytes.clone())).unwrap(), encode(&bytes).unwrap());
            assert_eq!(whole, elements, "{length} bytes");
            assert_eq!(decode::<Vec<u8>>(&whole).unwrap(), bytes);
            assert_eq!(decode::<Whole>(&elements).unwrap().0, bytes);
        }
    }

    #[test]
    fn length_beyond_the_bytes_is_malformed() {
        let mut encoded = encode(&Whole(vec![7; 100])).unwrap();
        encoded.truncate(50);
        assert!(decode::<Whole>(&encoded).is_err());
        // A length of all bits, which nothing may be allocated for.
        let bomb = [&encoded[..1], &[0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]].concat();
        assert!(decode::<Whole>(&bomb).is_err());
    }
}
