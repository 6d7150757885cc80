//! Keys, certificates and JWTs of workloads, as bytes: made, and checked when they come from the leader.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use muster_messages::wire::{SignedWorkload, WorkloadRequest};
use muster_messages::{ClusterId, ErrorBody, ErrorCode, WallTime, WorkloadName};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::core::{KeyId, Roots, SignFailure, Svid, Token, TokenKey};
use crate::jwt::check_new;

/// Certificates in a chain: a leaf, and one for each root that is not gone.
const MAX_CHAIN: usize = 9;

/// Asks the leader for certificates. The agent's session carries the question.
pub trait WorkloadSigner: Send + Sync + 'static {
    /// A certificate or a JWT of a workload that applies to this node. It ends in any case: the signer bounds the time in which the leader
    /// answers.
    fn sign(&self, request: WorkloadRequest) -> BoxFuture<'static, Result<SignedWorkload, ErrorBody>>;
}

/// A new key, signed. Its public half is all that leaves this process.
pub(crate) async fn new_svid(
    signer: Arc<dyn WorkloadSigner>,
    workload: WorkloadName,
    spiffe_id: String,
) -> Result<Svid, SignFailure> {
    let later = |why: String| SignFailure { refused: false, why };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| later(error.to_string()))?;
    let spki = key.subject_public_key_info();
    let request = WorkloadRequest::certificate(workload, spki.clone());
    let signed = signer.sign(request).await.map_err(|error| failure(&error))?;
    let (chain_der, issuer) = checked(&signed.text, &spki, &spiffe_id).map_err(later)?;
    let key_der = Zeroizing::new(key.serialize_der());
    Ok(Svid { chain_der, key_der, not_after: signed.not_after, issuer })
}

/// A JWT, signed.
pub(crate) async fn new_token(
    signer: Arc<dyn WorkloadSigner>,
    (workload, audience): TokenKey,
    cluster: ClusterId,
    wall: WallTime,
) -> Result<Token, SignFailure> {
    let later = |why: String| SignFailure { refused: false, why };
    let request = WorkloadRequest::jwt(workload.clone(), &audience).map_err(|error| later(error.to_string()))?;
    let signed = signer.sign(request).await.map_err(|error| match error.code {
        // What is asked for is legal.
        ErrorCode::Invalid => {
            later(format!("the leader does not sign JWTs, perhaps because its release is older: {}", error.message))
        }
        _ => failure(&error),
    })?;
    check_new(&signed.text, &workload, &audience, cluster, wall)
        .map_err(|why| later(format!("the leader signed something else: {why}")))?;
    Ok(Token { text: signed.text, not_after: signed.not_after })
}

fn failure(error: &ErrorBody) -> SignFailure {
    let refused = matches!(error.code, ErrorCode::NotFound | ErrorCode::Forbidden);
    SignFailure { refused, why: error.message.clone() }
}

/// The chain as DER and the key of its issuer, if it is for this key and this identity: a mistake of the leader must not become a wrong
/// identity of a program.
fn checked(chain_pem: &str, spki: &[u8], spiffe_id: &str) -> Result<(Vec<u8>, KeyId), String> {
    let chain = certificates(chain_pem, MAX_CHAIN)?;
    let leaf = parse(&chain[0])?;
    if leaf.public_key().raw != spki {
        return Err("the leader signed another key".to_owned());
    }
    let names = leaf.subject_alternative_name().ok().flatten().map(|names| &names.value.general_names);
    let uris = names.into_iter().flatten().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    if uris.collect::<Vec<_>>() != [spiffe_id] {
        return Err("the leader signed another identity".to_owned());
    }
    let issuer = leaf.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(of) => of.key_identifier.as_ref().map(|key| key.0.to_vec()),
        _ => None,
    });
    Ok((chain.concat(), issuer.unwrap_or_default()))
}

/// The roots of a bundle. One that cannot be read is skipped: the others are still good.
pub(crate) fn roots(bundle: &[String]) -> Roots {
    let mut roots = Roots::default();
    for pem in bundle {
        let read = certificates(pem, 1).and_then(|der| {
            let root = parse(&der[0])?;
            let spki = root.public_key();
            roots.jwt_keys.add(spki.raw, &spki.subject_public_key.data);
            Ok((key_of(&root), der.concat()))
        });
        match read {
            Ok((key, der)) => {
                roots.der.extend_from_slice(&der);
                roots.keys.extend(key);
            }
            Err(why) => tracing::error!(%why, "a root of the bundle cannot be read"),
        }
    }
    roots
}

fn key_of(root: &X509Certificate<'_>) -> Option<KeyId> {
    root.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0.to_vec()),
        _ => None,
    })
}

fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        _ => Err("malformed certificate".to_owned()),
    }
}

fn certificates(pem: &str, most: usize) -> Result<Vec<Vec<u8>>, String> {
    let blocks: Result<Vec<Pem>, _> = Pem::iter_from_buffer(pem.as_bytes()).take(most + 1).collect();
    let blocks = blocks.map_err(|error| error.to_string())?;
    let legal = (1..=most).contains(&blocks.len()) && blocks.iter().all(|block| block.label == "CERTIFICATE");
    if legal {
        Ok(blocks.into_iter().map(|block| block.contents).collect())
    } else {
        Err("not certificates".to_owned())
    }
}
