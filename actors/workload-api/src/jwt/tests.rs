//! Tokens that a root of the test signs, and all that others could make of them.

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use muster_messages::Secret;
use muster_pki::{Issuer, JWT_LIFETIME, JwtProfile, Root};

use super::*;
use crate::svid::roots;

const NOW: WallTime = WallTime(1_900_000_000_000);

fn cluster() -> ClusterId {
    ClusterId::from_entropy(1)
}

fn root() -> Root {
    Root::create(cluster(), NOW).unwrap()
}

fn keys(of: &[&Root]) -> JwtKeys {
    roots(&of.iter().map(|root| root.cert_pem.clone()).collect::<Vec<_>>()).jwt_keys
}

fn token(root: &Root) -> String {
    let issuer = Issuer::from_pem(&root.cert_pem, &root.key_pem).unwrap();
    let audience = vec!["db".to_owned(), "spiffe://x/api".to_owned()];
    let profile = JwtProfile { cluster: cluster(), workload: "shop/web".parse().unwrap(), audience, now: NOW };
    issuer.sign_jwt(&profile).unwrap().token
}

/// Signed by the key of this root, whatever it says.
fn forged(root: &Root, header: &Value, claims: &str) -> String {
    let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let signed = format!("{}.{}", part(&header.to_string()), part(claims));
    let key = key_of(&root.key_pem);
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn key_of(pem: &Secret) -> EcdsaKeyPair {
    let key = rcgen::KeyPair::from_pem(pem.expose()).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der()).unwrap()
}

fn kid(root: &Root) -> String {
    muster_pki::root_id_of_pem(&root.cert_pem).unwrap().to_string()
}

#[test]
fn token_is_good_for_its_audience_until_it_expires() {
    let root = root();
    let (token, keys) = (token(&root), keys(&[&root]));
    let good = |audience: &str, now| keys.validate(&token, audience, cluster(), now);
    let said = good("db", NOW).unwrap();
    assert_eq!(said.spiffe_id, format!("spiffe://{}/workload/shop/web", cluster()));
    assert_eq!(said.claims["exp"], NOW.plus(JWT_LIFETIME).0 / 1000);
    assert!(good("spiffe://x/api", NOW).is_ok());
    for other in ["", "d", "api", "spiffe://x/ap"] {
        assert_eq!(good(other, NOW), Err(BadJwt::Audience), "{other:?}");
    }
    let second = Duration::from_secs(1);
    assert!(good("db", NOW.plus(JWT_LIFETIME)).is_ok(), "clocks differ");
    assert_eq!(good("db", NOW.plus(JWT_LIFETIME + 30 * second)), Err(BadJwt::Expired));
    let other = ClusterId::from_entropy(2);
    assert_eq!(keys.validate(&token, "db", other, NOW), Err(BadJwt::Subject), "another trust domain");
}

#[test]
fn token_of_a_root_that_is_not_trusted_is_refused() {
    let (old, new) = (root(), root());
    let (of_old, of_new) = (token(&old), token(&new));
    let judged = |keys: &JwtKeys, token: &str| keys.validate(token, "db", cluster(), NOW).map(drop);
    let both = keys(&[&old, &new]);
    assert_eq!((judged(&both, &of_old), judged(&both, &of_new)), (Ok(()), Ok(())), "while both are trusted");
    assert_eq!(judged(&keys(&[&old]), &of_new), Err(BadJwt::UnknownKey), "not published here yet");
    assert_eq!(judged(&keys(&[&new]), &of_old), Err(BadJwt::UnknownKey), "retired");
    // The key of one, the name of the other.
    let header = json!({"alg": "ES256", "kid": kid(&old), "typ": "JWT"});
    let claims =
        json!({"sub": format!("spiffe://{}/workload/shop/web", cluster()), "aud": "db", "exp": NOW.0 / 1000 + 60});
    assert_eq!(judged(&both, &forged(&new, &header, &claims.to_string())), Err(BadJwt::Signature));
    assert_eq!(judged(&both, &forged(&old, &header, &claims.to_string())), Ok(()), "one audience as a text");
}

#[test]
fn altered_and_foreign_tokens_are_refused() {
    let root = root();
    let (token, keys) = (token(&root), keys(&[&root]));
    let judged = |token: &str| keys.validate(token, "db", cluster(), NOW).map(drop);
    let parts: Vec<&str> = token.split('.').collect();
    let other = |header: Value| {
        let unsigned = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), parts[1]);
        judged(&format!("{unsigned}.{}", parts[2]))
    };
    assert_eq!(other(json!({"alg": "none", "kid": kid(&root)})), Err(BadJwt::Algorithm));
    assert_eq!(judged(&format!("{}.{}.", parts[0], parts[1])), Err(BadJwt::Signature), "no signature");
    assert_eq!(other(json!({"alg": "HS256", "kid": kid(&root)})), Err(BadJwt::Algorithm));
    assert_eq!(other(json!({"alg": "ES256"})), Err(BadJwt::Header), "no kid");
    assert_eq!(other(json!({"alg": "ES256", "kid": kid(&root), "crit": ["b64"]})), Err(BadJwt::Header));
    assert_eq!(other(json!({"alg": "ES256", "kid": kid(&root), "typ": "at+jwt"})), Err(BadJwt::Header));
    assert_eq!(other(json!({"alg": "ES256", "kid": kid(&root)})), Err(BadJwt::Signature), "not what was signed");
    let long = "x".repeat(MAX_TOKEN + 1);
    for malformed in ["", "a", "a.b", "a.b.c.d", "!.e30.e30", &long] {
        assert_eq!(judged(malformed), Err(BadJwt::Form), "{malformed:.20}");
    }
    // Every byte of it counts.
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(judged(&String::from_utf8(bytes).unwrap()).is_err(), "byte {at}");
    }
}

#[test]
fn claims_that_the_leader_never_signs_are_refused() {
    let root = root();
    let keys = keys(&[&root]);
    let header = json!({"alg": "ES256", "kid": kid(&root)});
    let judged = |claims: &str| keys.validate(&forged(&root, &header, claims), "db", cluster(), NOW).map(drop);
    let (sub, exp) = (format!("spiffe://{}/workload/shop/web", cluster()), NOW.0 / 1000 + 60);
    for (claims, expected) in [
        (json!({"sub": sub, "aud": "db", "exp": exp}), Ok(())),
        (json!({"sub": sub, "aud": "db"}), Err(BadJwt::Claims)),
        (json!({"sub": sub, "exp": exp}), Err(BadJwt::Claims)),
        (json!({"aud": "db", "exp": exp}), Err(BadJwt::Claims)),
        (json!({"sub": sub, "aud": "db", "exp": "soon"}), Err(BadJwt::Claims)),
        (json!({"sub": sub, "aud": [], "exp": exp}), Err(BadJwt::Audience)),
        (json!({"sub": sub, "aud": "db", "exp": exp, "nbf": exp}), Err(BadJwt::Early)),
        (json!({"sub": format!("{sub}/more"), "aud": "db", "exp": exp}), Err(BadJwt::Subject)),
        (json!({"sub": format!("spiffe://{}/manager/x", cluster()), "aud": "db", "exp": exp}), Err(BadJwt::Subject)),
    ] {
        assert_eq!(judged(&claims.to_string()), expected, "{claims}");
    }
    let twice = format!("{{\"sub\":\"x\",\"sub\":\"{sub}\",\"aud\":\"db\",\"exp\":{exp}}}");
    assert_eq!(judged(&twice), Err(BadJwt::Claims));
}

#[test]
fn keys_are_a_jwk_set_of_all_roots() {
    let (old, new) = (root(), root());
    let set: Value = serde_json::from_slice(&keys(&[&old, &new]).to_json()).unwrap();
    let listed = set["keys"].as_array().unwrap();
    let mut kids: Vec<String> = listed.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect();
    kids.sort();
    let mut expected = [kid(&old), kid(&new)];
    expected.sort();
    assert_eq!(kids, expected);
    for key in listed {
        let [x, y] = ["x", "y"].map(|name| URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap().len());
        assert_eq!((x, y, &key["use"], &key["crv"]), (32, 32, &json!("jwt-svid"), &json!("P-256")));
    }
}

/// A mistake of the leader must not become a wrong identity of a program.
#[test]
fn new_token_says_what_it_was_asked_for() {
    let token = token(&root());
    let audience = vec!["db".to_owned(), "spiffe://x/api".to_owned()];
    let check =
        |workload: &str, audience: &[String]| check_new(&token, &workload.parse().unwrap(), audience, cluster(), NOW);
    assert_eq!(check("shop/web", &audience), Ok(()));
    assert_eq!(check("shop/other", &audience), Err(BadJwt::Subject));
    assert_eq!(check("shop/web", &["other".to_owned()]), Err(BadJwt::Audience));
}
