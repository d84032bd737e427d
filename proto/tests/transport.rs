//! Who may meet whom: loopback, Unix sockets, TLS with client certificates.

#[path = "common/authority.rs"]
mod authority;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use authority::Authority;
use castnet_proto::transport::{
    Address, Connection, Obstacle, Security, TlsFiles, TransportError, connect, serve,
};
use castnet_proto::v1::agent_client::AgentClient;
use castnet_proto::v1::{FindLeaderRequest, GetCapabilitiesRequest};
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::Channel;

/// What a call comes to at a server without services: it got through.
async fn call(channel: Channel) -> Code {
    AgentClient::new(channel)
        .get_capabilities(GetCapabilitiesRequest {})
        .await
        .unwrap_err()
        .code()
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

/// The files of one end, in a folder of their own.
fn issue(authority: &Authority, folder: &Path) -> TlsFiles {
    authority.issue(folder, &["localhost", "127.0.0.1"]).tls.unwrap()
}

fn with(tls: TlsFiles) -> Security {
    Security {
        tls: Some(tls),
        ..Security::default()
    }
}

/// Copies the files of one end over those of another.
fn replace(old: &TlsFiles, new: &TlsFiles) {
    for (old, new) in [(&old.ca, &new.ca), (&old.cert, &new.cert), (&old.key, &new.key)] {
        fs::copy(new, old).unwrap();
    }
}

/// Whether a new connection gets through.
async fn meets(server: &Address, security: &Security) -> bool {
    match connect(server, security).await {
        Ok(channel) => call(channel).await == Code::Unimplemented,
        Err(_) => false,
    }
}

#[tokio::test]
async fn loopback_and_unix_sockets_need_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", folder.path().join("a.sock").display());
    for text in ["http://127.0.0.1:0", "http://localhost:0", &socket] {
        let server = serve(&address(text), &Security::default(), Routes::default())
            .await
            .unwrap();
        let channel = connect(server.address(), &Security::default()).await.unwrap();
        assert_eq!(call(channel.clone()).await, Code::Unimplemented, "{text}");
        let gone = server.address().clone();
        server.stop().await;
        assert_ne!(call(channel).await, Code::Unimplemented, "{text} still answers");
        assert!(
            connect(&gone, &Security::default()).await.is_err(),
            "{text} still listens"
        );
    }
    assert!(!folder.path().join("a.sock").exists());
}

#[tokio::test]
async fn a_dead_socket_file_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let unix = Address::Unix(path);
    let server = serve(&unix, &Security::default(), Routes::default())
        .await
        .unwrap();
    let second = serve(&unix, &Security::default(), Routes::default()).await;
    assert!(matches!(second, Err(TransportError::Listen { .. })));
    assert_eq!(
        call(connect(server.address(), &Security::default()).await.unwrap()).await,
        Code::Unimplemented
    );
}

#[tokio::test]
async fn plaintext_beyond_this_machine_needs_a_flag() {
    let everywhere = address("http://0.0.0.0:0");
    let refused = serve(&everywhere, &Security::default(), Routes::default())
        .await
        .unwrap_err();
    assert!(matches!(refused, TransportError::Plaintext { .. }));
    assert!(refused.to_string().contains("--insecure"), "{refused}");
    let insecure = Security {
        insecure: true,
        ..Security::default()
    };
    serve(&everywhere, &insecure, Routes::default()).await.unwrap();
    // 192.0.2.0/24 is for examples: refused before anything is sent.
    let refused = connect(&address("http://192.0.2.1:1"), &Security::default())
        .await
        .unwrap_err();
    assert!(matches!(refused, TransportError::Plaintext { .. }));
}

#[tokio::test]
async fn tls_takes_those_of_the_same_authority_only() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let host = with(issue(&ours, &folder.path().join("server")));
    let server = serve(&address("https://127.0.0.1:0"), &host, Routes::default())
        .await
        .unwrap();
    let Address::Tcp { port, .. } = *server.address() else {
        panic!("{}", server.address())
    };

    let friend = with(issue(&ours, &folder.path().join("friend")));
    for text in [
        format!("https://127.0.0.1:{port}"),
        format!("https://localhost:{port}"),
    ] {
        assert_eq!(
            call(connect(&address(&text), &friend).await.unwrap()).await,
            Code::Unimplemented,
            "{text}"
        );
    }

    // Trusts us, but shows a certificate that we do not trust. With TLS 1.3 that shows at the first call.
    let mut stranger = issue(&theirs, &folder.path().join("stranger"));
    stranger.ca = friend.tls.clone().unwrap().ca;
    let outcome = match connect(server.address(), &with(stranger)).await {
        Ok(channel) => call(channel).await,
        Err(_) => Code::Unavailable,
    };
    assert_ne!(
        outcome,
        Code::Unimplemented,
        "a certificate of another authority got through"
    );

    // Does not trust us.
    let suspicious = with(issue(&theirs, &folder.path().join("suspicious")));
    let refused = connect(server.address(), &suspicious).await.unwrap_err();
    assert_eq!(refused.obstacle(), Some(Obstacle::Authority), "{refused}");

    // Asks for a name that our certificate does not have.
    let nameless = serve(&address("https://127.0.0.2:0"), &host, Routes::default())
        .await
        .unwrap();
    let refused = connect(nameless.address(), &friend).await.unwrap_err();
    assert_eq!(refused.obstacle(), Some(Obstacle::Name), "{refused}");

    // Shows no certificate at all: ours refuse to try, and others are turned away.
    let refused = connect(server.address(), &Security::default()).await.unwrap_err();
    assert!(
        matches!(refused, TransportError::NoCertificates { .. }),
        "{refused}"
    );
    let bare = tonic::transport::ClientTlsConfig::new()
        .ca_certificate(tonic::transport::Certificate::from_pem(&ours.ca_pem));
    let endpoint = Channel::from_shared(server.address().to_string())
        .unwrap()
        .tls_config(bare)
        .unwrap();
    let outcome = match endpoint.connect().await {
        Ok(channel) => call(channel).await,
        Err(_) => Code::Unavailable,
    };
    assert_ne!(outcome, Code::Unimplemented, "no certificate got through");
}

#[tokio::test]
async fn bad_files_are_named() {
    let missing = TlsFiles {
        ca: "/nowhere/ca".into(),
        cert: "/nowhere/cert".into(),
        key: "/nowhere/key".into(),
    };
    let refused = serve(&address("https://127.0.0.1:0"), &with(missing), Routes::default())
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("/nowhere/ca"), "{refused}");
    let refused = serve(
        &address("https://127.0.0.1:0"),
        &Security::default(),
        Routes::default(),
    )
    .await
    .unwrap_err();
    assert!(refused.to_string().contains("--tls-cert"), "{refused}");
}

#[tokio::test]
async fn a_server_takes_new_certificates_without_a_restart_and_keeps_the_old_where_they_are_bad() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let files = issue(&old, &folder.path().join("server"));
    let server = serve(
        &address("https://127.0.0.1:0"),
        &with(files.clone()),
        Routes::default(),
    )
    .await
    .unwrap();
    let of_old = with(issue(&old, &folder.path().join("old")));
    let of_new = with(issue(&new, &folder.path().join("new")));
    let open = connect(server.address(), &of_old).await.unwrap();
    assert!(!meets(server.address(), &of_new).await);

    replace(&files, &issue(&new, &folder.path().join("server-new")));
    assert!(meets(server.address(), &of_new).await);
    assert!(
        !meets(server.address(), &of_old).await,
        "the old authority still counts"
    );
    assert_eq!(
        call(open).await,
        Code::Unimplemented,
        "an open connection was cut"
    );

    fs::write(&files.cert, "nonsense").unwrap();
    assert!(
        meets(server.address(), &of_new).await,
        "a bad file ended the service"
    );
    fs::remove_file(&files.key).unwrap();
    assert!(
        meets(server.address(), &of_new).await,
        "a missing file ended the service"
    );
}

#[tokio::test]
async fn a_channel_reconnects_with_new_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (Authority::new(), Authority::new());
    let files = issue(&old, &folder.path().join("client"));
    let first = with(issue(&old, &folder.path().join("first")));
    let server = serve(&address("https://127.0.0.1:0"), &first, Routes::default())
        .await
        .unwrap();
    let at = server.address().clone();
    let channel = connect(&at, &with(files.clone())).await.unwrap();
    assert_eq!(call(channel.clone()).await, Code::Unimplemented);
    server.stop().await;

    replace(&files, &issue(&new, &folder.path().join("client-new")));
    let second = with(issue(&new, &folder.path().join("second")));
    let _server = serve(&at, &second, Routes::default()).await.unwrap();
    // The call that finds the old connection dead may fail.
    let codes = [call(channel.clone()).await, call(channel).await];
    assert_eq!(codes[1], Code::Unimplemented, "{codes:?}");
}

/// A server that knows no call is taken for a controller that leads.
#[tokio::test]
async fn a_connection_is_shared_and_outlives_its_controller() {
    let folder = tempfile::tempdir().unwrap();
    let unix = Address::Unix(folder.path().join("c.sock"));
    let security = Security::default();
    let to = |security: &Security| Connection::to(&unix.clone().into(), security).unwrap();
    let connection = to(&security);
    assert!(Arc::ptr_eq(&connection, &to(&security)));
    let other = Security {
        insecure: true,
        ..security.clone()
    };
    assert!(!Arc::ptr_eq(&connection, &to(&other)), "of another identity");

    let ask = || {
        let clients = connection.clients();
        let mut call = connection.spawn(async move {
            let asked = clients.leading().await?.find_leader(FindLeaderRequest {}).await;
            Ok::<_, TransportError>(asked.unwrap_err().code())
        });
        async move {
            loop {
                match call.poll() {
                    Some(asked) => return asked,
                    None => tokio::task::yield_now().await,
                }
            }
        }
    };
    for _ in 0..2 {
        let failed = ask().await.unwrap_err();
        assert!(failed.is_transient(), "{failed}");
        let server = serve(&unix, &security, Routes::default()).await.unwrap();
        assert_eq!(ask().await.unwrap(), Code::Unimplemented);
        server.stop().await;
    }
}

/// Who begins handshakes and ends none keeps nobody out, at the same address or at another one.
#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let security = with(issue(&authority, folder.path()));
    let server = serve(&address("https://127.0.0.1:0"), &security, Routes::default())
        .await
        .unwrap();
    let at = server.address().to_string();
    let at: std::net::SocketAddr = at.strip_prefix("https://").unwrap().parse().unwrap();
    let mut silent = Vec::new();
    for n in 0..400 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        let own = if n % 2 == 0 {
            [127, 0, 0, 1]
        } else {
            [127, 0, 1, (n / 40) as u8 + 1]
        };
        socket.bind((std::net::Ipv4Addr::from(own), 0).into()).unwrap();
        silent.push(socket.connect(at).await.unwrap());
    }
    assert!(meets(server.address(), &security).await);
    drop(silent);
}

/// Whoever has a certificate can keep nobody else out with it.
#[tokio::test]
async fn connections_with_one_certificate_are_limited() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let security = with(issue(&authority, &folder.path().join("server")));
    let server = serve(&address("https://127.0.0.1:0"), &security, Routes::default())
        .await
        .unwrap();
    let of = |name: &str| authority.issue(&folder.path().join(name), &[name]);
    let (greedy, other) = (of("h9"), of("h1"));
    let mut all = Vec::new();
    while let Ok(channel) = connect(server.address(), &greedy).await {
        if call(channel.clone()).await != Code::Unimplemented {
            break;
        }
        all.push(channel);
    }
    assert!((1..=256).contains(&all.len()), "{}", all.len());
    assert!(meets(server.address(), &other).await);
    all.pop();
    while !meets(server.address(), &greedy).await {}
}
