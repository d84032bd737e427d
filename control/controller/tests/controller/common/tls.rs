//! An authority, and clients with certificates of it.

use std::path::Path;

use castnet_proto::transport::{Address, Security, TlsFiles, connect};
use castnet_proto::v1::controller_client::ControllerClient;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::Client;

pub(crate) struct Authority {
    ca_pem: String,
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

    /// A certificate with these names, and its files in `folder`.
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

    /// A client with a certificate of these names.
    pub(crate) async fn client(&self, folder: &Path, server: &Address, names: &[&str]) -> Client {
        let security = self.issue(&folder.join(names.join("+")), names);
        ControllerClient::new(connect(server, &security).await.unwrap())
    }
}
