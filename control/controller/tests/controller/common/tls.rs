//! An authority, and clients with certificates of it.

#[path = "../../../../../proto/tests/common/authority.rs"]
mod authority;

use std::path::Path;

use castnet_proto::transport::{Address, connect};
use castnet_proto::v1::controller_client::ControllerClient;

use super::Client;
pub(crate) use authority::Authority;

impl Authority {
    /// A client with a certificate of these names.
    pub(crate) async fn client(&self, folder: &Path, server: &Address, names: &[&str]) -> Client {
        let security = self.issue(&folder.join(names.join("+")), names);
        ControllerClient::new(connect(server, &security).await.unwrap())
    }
}
