//! An authority for tests. Tests of other crates have this file too.

use std::path::Path;

use castnet_proto::transport::{Security, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

pub(crate) struct Authority {
    pub(crate) ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Self {
            ca_pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate with these names. Its files are all that `folder` has.
    pub(crate) fn issue(&self, folder: &Path, names: &[&str]) -> Security {
        std::fs::create_dir_all(folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        let params = CertificateParams::new(names).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = TlsFiles {
            ca: folder.join("ca"),
            cert: folder.join("cert"),
            key: folder.join("key"),
        };
        std::fs::write(&files.ca, &self.ca_pem).unwrap();
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        Security {
            tls: Some(files),
            ..Security::default()
        }
    }
}
