//! Identity: keys, certificates, tokens, TLS configurations, and their files.
//!
//! A plain library without an actor. All identities that Muster accepts are read by [`identity_of`], and all that it
//! creates are signed by [`Issuer`].
//!
//! Invariants  PKI-1  one crypto provider (aws-lc-rs), passed explicitly everywhere.
//!             PKI-2  TLS 1.3 only and no session resumption on either side: a resumed session carries the old certificate
//!                    and is not verified again.
//!             PKI-3  a certificate contains only the signer's choices; of a signing request only the public key is used.
//!             PKI-4  the principal is read only from the one URI SAN.
//!             PKI-5  every parser has a size limit and returns an error; no input of a peer can cause a panic.
//!             PKI-6  key and certificate are written in one step: no crash leaves a key without its certificate.

mod access;
mod csr;
mod encoding;
mod founding;
mod grant;
mod identity;
mod issue;
mod join_attempt;
mod jwt;
pub mod private;
mod random;
mod recovering;
mod rekey;
mod sealed;
mod store;
mod tls;
mod token;
mod trust;
mod upstream;

pub use self::access::BearerToken;
pub use self::csr::{BadCsr, CsrKey, PublicKey, make_csr, new_key};
pub use self::encoding::{BadPem, MAX_DER, MAX_PEM};
pub use self::founding::Founding;
pub use self::grant::Grant;
pub use self::identity::{
    BadCertificate, cluster_of_root_pem, identity_of, identity_of_pem, not_after_of_pem, not_before_of_pem,
    path_length_of_pem, root_id, root_id_of_pem, validity_of_chain,
};
pub use self::issue::{
    Issuer, MIN_NODE_LIFETIME, NODE_LIFETIME, NodeProfile, ROOT_LIFETIME, Root, SignError, Signed, UserProfile,
    WorkloadProfile,
};
pub use self::join_attempt::JoinAttempt;
pub use self::jwt::{JWT_LIFETIME, JwtProfile, SignedJwt};
pub use self::recovering::{Recovering, sign_for_itself};
pub use self::rekey::{BadRekey, prove_rekey, verify_rekey};
pub use self::store::{
    Ended, IDENTITY_FOLDER, IdentityFault, IdentityStore, LeftKeyring, LocalNode, credentials, own_root_pem,
    with_bundle,
};
pub use self::tls::{TlsFault, client_config, server_config, server_config_for, unverified_client_config};
pub use self::token::{BadToken, JoinToken, digest, new_token_id, new_token_secret, secrets_equal};
pub use muster_messages::MANAGER_NAME;
pub use muster_sealing::files::write_atomic;

pub use self::trust::{BadBundle, Bundle, MAX_CHAIN};
pub use self::upstream::{
    BadIssued, IssuedAuthority, MAX_ANSWER, MAX_ISSUED, MAX_PATH_LENGTH, MIN_ISSUING_LIFETIME, first_of_answer,
    issued_authority, make_authority_csr, root_id_of_key,
};
