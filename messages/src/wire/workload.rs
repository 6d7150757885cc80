//! What a node has signed for its workloads.

use serde::{Deserialize, Serialize};

use super::{WireError, decode, encode};
use crate::model::{WallTime, WorkloadName};

/// Asks for something to be signed for a workload of the asking node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadRequest {
    pub workload: WorkloadName,
    /// A [`WorkloadWanted`], as [`WorkloadRequest::wanted`] reads it.
    wanted: Vec<u8>,
}

/// What is to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadWanted {
    /// A certificate. Lost: asked again. Repeated: another one. Late: by the entry of that moment.
    Certificate {
        /// `SubjectPublicKeyInfo`, DER; ECDSA P-256. The node made the key, and keeps the private one in memory.
        public_key_der: Vec<u8>,
    },
    /// A JWT for this audience. Lost: asked again. Repeated: another one. Late: by the entry of that moment.
    Jwt { audience: Vec<String> },
}

/// A DER sequence begins with it: a public key, and never an encoded value, which begins with [`super::WIRE_VERSION`].
const DER_SEQUENCE: u8 = 0x30;

impl WorkloadRequest {
    /// Asks for a certificate. The field has the key itself, as in the releases that know of certificates only.
    pub fn certificate(workload: WorkloadName, public_key_der: Vec<u8>) -> Self {
        Self { workload, wanted: public_key_der }
    }
    /// Asks for a JWT. A leader of an earlier release takes it for a malformed key, and refuses it as `invalid`: the session continues.
    ///
    /// # Errors
    /// The audience is larger than any frame.
    pub fn jwt(workload: WorkloadName, audience: &[String]) -> Result<Self, WireError> {
        Ok(Self { workload, wanted: encode(&audience)? })
    }
    /// What is asked for. Neither the key nor the audience is judged.
    ///
    /// # Errors
    /// It is neither.
    pub fn wanted(&self) -> Result<WorkloadWanted, WireError> {
        match self.wanted.first() {
            Some(&DER_SEQUENCE) => Ok(WorkloadWanted::Certificate { public_key_der: self.wanted.clone() }),
            _ => decode(&self.wanted).map(|audience| WorkloadWanted::Jwt { audience }),
        }
    }
    pub fn is_jwt(&self) -> bool {
        self.wanted.first() != Some(&DER_SEQUENCE)
    }
}

/// What was signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedWorkload {
    /// Of a certificate: it, and those that lead from it to older roots, PEM. Of a JWT: its compact form.
    pub text: String,
    pub not_after: WallTime,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::MAX_FRAME;

    fn name() -> WorkloadName {
        "a/b".parse().unwrap()
    }

    /// A build that knows of certificates only reads the same bytes, and takes another request for a key.
    #[test]
    fn requests_for_jwts_keep_the_bytes_of_certificates() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Earlier {
            workload: WorkloadName,
            public_key_der: Vec<u8>,
        }
        let key = vec![DER_SEQUENCE, 0x59, 7];
        let request = WorkloadRequest::certificate(name(), key.clone());
        let bytes = encode(&request).unwrap();
        assert_eq!(bytes, encode(&Earlier { workload: name(), public_key_der: key.clone() }).unwrap());
        assert_eq!(request.wanted(), Ok(WorkloadWanted::Certificate { public_key_der: key }));
        let audience = vec!["spiffe://a".to_owned(), String::new()];
        let request = WorkloadRequest::jwt(name(), &audience).unwrap();
        assert!(request.is_jwt());
        assert_eq!(request.wanted(), Ok(WorkloadWanted::Jwt { audience }));
        let earlier: Earlier = decode(&encode(&request).unwrap()).unwrap();
        assert_eq!(earlier.public_key_der.first(), Some(&super::super::WIRE_VERSION));
    }

    #[test]
    fn a_request_for_neither_is_malformed() {
        for wanted in [vec![], vec![7], vec![1, 2]] {
            assert!(WorkloadRequest { workload: name(), wanted }.wanted().is_err());
        }
        let long = vec!["x".repeat(MAX_FRAME)];
        assert!(WorkloadRequest::jwt(name(), &long).is_err());
    }
}
