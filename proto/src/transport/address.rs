use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a service: `http://host:port`, `https://host:port` or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// TCP.
    Tcp {
        /// Whether it uses TLS.
        tls: bool,
        /// Name or IP address; IPv6 addresses in brackets.
        host: String,
        /// 0: a server chooses a free port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// The text is no [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no address of a service: http://127.0.0.1:PORT, https://HOST:PORT or unix:/PATH")]
pub struct BadAddress {
    text: String,
}

impl Address {
    pub(super) fn tcp(tls: bool, addr: SocketAddr) -> Self {
        let host = match addr {
            SocketAddr::V4(v4) => v4.ip().to_string(),
            SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
        };
        Self::Tcp {
            tls,
            host,
            port: addr.port(),
        }
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress { text: text.into() };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(bad()),
            };
        }
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(bad()),
        };
        let (host, port) = rest.trim_end_matches('/').rsplit_once(':').ok_or_else(bad)?;
        let inner = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let is_host = match inner {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_plain),
        };
        match port.parse() {
            Ok(port) if is_host => Ok(Self::Tcp {
                tls,
                host: host.into(),
                port,
            }),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { tls, host, port } => write!(f, "http{}://{host}:{port}", if *tls { "s" } else { "" }),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_go_there_and_back() {
        for text in [
            "http://127.0.0.1:0",
            "https://leaf-1.example:7471",
            "http://[::1]:80",
            "unix:/run/a b.sock",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let unix = "unix:///run/x.sock".parse::<Address>().unwrap();
        assert_eq!(unix, Address::Unix("/run/x.sock".into()));
        let bads = [
            "",
            "127.0.0.1:80",
            "http://127.0.0.1",
            "http://:80",
            "unix:x.sock",
            "https://a b:1",
            "http://[::x]:1",
        ];
        for bad in bads
            .into_iter()
            .chain(["http://h:99999", "tcp://h:1", "http://h:80/path"])
        {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}", scheme in "(|http://|https://|unix:)") {
            if let Ok(address) = format!("{scheme}{text}").parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
