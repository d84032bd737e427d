use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::{
    ANSWER_BYTES_MAX, Address, BadAddress, CONNECT_TIMEOUT, ControllerClient, Security, TransportError,
    connect,
};
use crate::term::{JoinedAt, leader_of};
use crate::v1::FindLeaderRequest;

/// Limit of an attempt if there are other controllers.
pub(super) const NEXT_AFTER: Duration = Duration::from_secs(1);

/// The addresses of the controllers of a fabric, one or several. In text form they are separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controllers(Vec<Address>);

impl Controllers {
    /// The address, if there is only one.
    pub fn only(&self) -> Option<&Address> {
        match self.0.as_slice() {
            [address] => Some(address),
            _ => None,
        }
    }
}

impl From<Address> for Controllers {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl FromStr for Controllers {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        text.split(',')
            .map(|address| address.trim().parse())
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl fmt::Display for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, address) in self.0.iter().enumerate() {
            write!(f, "{}{address}", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Connects to the controller that leads: one of these, or one that they name.
///
/// # Errors
/// As [`connect`], or none leads; of several errors the last of those that may pass, or the last.
pub async fn controller(
    controllers: &Controllers,
    security: &Security,
) -> Result<ControllerClient, TransportError> {
    let joined = JoinedAt::default();
    let channel = leading(controllers, security, &joined).await?;
    Ok(client(channel, joined))
}

pub(super) fn client(channel: Channel, joined: JoinedAt) -> ControllerClient {
    ControllerClient::new(InterceptedService::new(channel, joined))
        .max_decoding_message_size(ANSWER_BYTES_MAX)
}

/// As [`controller`], for a member that has joined: one on another store does not lead for it.
pub(super) async fn leading(
    controllers: &Controllers,
    security: &Security,
    joined: &JoinedAt,
) -> Result<Channel, TransportError> {
    let mut untried: VecDeque<Address> = controllers.0.iter().cloned().collect();
    let mut tried: Vec<Address> = Vec::new();
    let mut last = TransportError::NoController;
    while let Some(address) = untried.pop_front() {
        let found = find_leader(&address, security, joined);
        let found = match untried.is_empty() {
            true => found.await,
            false => match timeout(NEXT_AFTER, found).await {
                Ok(found) => found,
                Err(_) => Err((TransportError::Timeout(address.clone(), NEXT_AFTER), None)),
            },
        };
        tried.push(address);
        let (error, leader) = match found {
            Ok(channel) => return Ok(channel),
            Err(failed) => failed,
        };
        if !last.is_transient() || error.is_transient() {
            last = error;
        }
        if let Some(leader) = leader.filter(|leader| !tried.contains(leader)) {
            untried.retain(|address| *address != leader);
            untried.push_front(leader);
        }
    }
    Err(last)
}

/// The error has the address of the controller that leads instead, if it is known.
async fn find_leader(
    address: &Address,
    security: &Security,
    joined: &JoinedAt,
) -> Result<Channel, (TransportError, Option<Address>)> {
    let channel = connect(address, security).await.map_err(|error| (error, None))?;
    ask(channel, address, joined).await
}

/// As [`find_leader`], over a connection.
async fn ask(
    channel: Channel,
    address: &Address,
    joined: &JoinedAt,
) -> Result<Channel, (TransportError, Option<Address>)> {
    let mut client = client(channel.clone(), joined.clone());
    match timeout(CONNECT_TIMEOUT, client.find_leader(FindLeaderRequest {})).await {
        // The connection may stand for long: probes are answered without the controller.
        Err(_) => Err((TransportError::Timeout(address.clone(), CONNECT_TIMEOUT), None)),
        Ok(Err(status)) if status.code() == Code::Unavailable => {
            let leader = leader_of(&status);
            let why = status.message().into();
            Err((TransportError::NotLeading(address.clone(), why), leader))
        }
        // It leads, or is older than this call.
        Ok(_) => Ok(channel),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};
    use std::io;

    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;
    use tonic::codegen::http::Uri;
    use tonic::codegen::{Context, Poll, Service};
    use tonic::transport::Endpoint;

    use super::*;

    /// A connector with one connection.
    struct Once(Option<DuplexStream>);

    impl Service<Uri> for Once {
        type Response = TokioIo<DuplexStream>;
        type Error = io::Error;
        type Future = Ready<io::Result<Self::Response>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Uri) -> Self::Future {
            let socket = self.0.take().map(TokioIo::new);
            ready(socket.ok_or_else(|| io::ErrorKind::NotConnected.into()))
        }
    }

    /// The last controller of a list was waited for without a limit while its connection stood.
    #[tokio::test(start_paused = true)]
    async fn a_controller_that_answers_no_call_is_not_waited_for() {
        let (near, _far) = tokio::io::duplex(1 << 16);
        let channel = Endpoint::from_static("http://c").connect_with_connector_lazy(Once(Some(near)));
        let address: Address = "http://127.0.0.1:1".parse().unwrap();
        let (patience, joined) = (Duration::from_secs(600), JoinedAt::default());
        let asked = timeout(patience, ask(channel, &address, &joined)).await;
        let (error, leader) = asked.expect("an end").unwrap_err();
        assert!(matches!(error, TransportError::Timeout(..)), "{error}");
        assert!(error.is_transient() && leader.is_none());
    }

    #[test]
    fn a_list_goes_there_and_back_and_each_address_must_be_one() {
        let text = "http://127.0.0.1:1,unix:/run/c.sock";
        assert_eq!(text.parse::<Controllers>().unwrap().to_string(), text);
        for bad in ["", "http://127.0.0.1:1,", "http://127.0.0.1:1,x"] {
            assert!(bad.parse::<Controllers>().is_err(), "{bad}");
        }
    }
}
