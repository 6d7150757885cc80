//! A company's certificate authorities, above a cluster's own.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

/// One authority of a company: its root, or a subordinate of that.
pub struct Company {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate and those above it, in PEM.
    pub chain: String,
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

impl Company {
    /// The root.
    pub fn root() -> Self {
        let (key, params) = (KeyPair::generate().expect("a key"), params("company root"));
        let chain = params.self_signed(&key).expect("signed").pem();
        Self { issuer: Issuer::new(params, key), chain }
    }
    /// A subordinate of this authority.
    pub fn subordinate(&self, name: &str) -> Self {
        self.subordinate_with(name, |_| {})
    }
    /// A subordinate whose certificate is changed before it is signed.
    pub fn subordinate_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let (key, mut params) = (KeyPair::generate().expect("a key"), params(name));
        change(&mut params);
        let chain = params.signed_by(&key, &self.issuer).expect("signed").pem() + &self.chain;
        Self { issuer: Issuer::new(params, key), chain }
    }
    /// A certificate of its key under another name.
    pub fn renamed(&self, name: &str) -> String {
        params(name).self_signed(self.issuer.key()).expect("signed").pem()
    }
    /// Signs what a request asks for. The answer is the certificate and those above it.
    pub fn sign(&self, csr_pem: &str) -> String {
        self.sign_with(csr_pem, |_| {})
    }
    /// Signs a request that is changed before.
    pub fn sign_with(&self, csr_pem: &str, change: impl FnOnce(&mut CertificateParams)) -> String {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem).expect("a request");
        change(&mut request.params);
        request.signed_by(&self.issuer).expect("signed").pem() + &self.chain
    }
}
