//! Who may call what. A client has a [`Role`] by the names of its certificate. Each method needs a [`Right`]. [`guard`] checks
//! both in front of a service, and hands the [`Caller`] on to it.
//!
//! Clients without a certificate, at a Unix socket or over plaintext, are operators: the mode of the socket, or the machine,
//! protects the service.

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, OnceLock};

use castnet_toml_reader::Value;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::{Code, Request, Status};

use crate::answer::Answer;
use crate::audit::{self, AuditLog};
use crate::bounded::Bounded;
use crate::shares::{Share, Shares};
use crate::transport::{Address, Listener, Peer, Security, Server, TransportError};

/// What a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// May do everything.
    Operator,
    /// May program switches.
    Controller,
    /// May read everything, and change nothing.
    ReadOnly,
    /// May join groups as itself. Every certificate that is not listed.
    Host,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Operator => "operator",
            Self::Controller => "controller",
            Self::ReadOnly => "read-only",
            Self::Host => "host",
        })
    }
}

/// What a method needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// To change what concerns all, or to see the content of traffic.
    Operate,
    /// To change the groups of a switch.
    Program,
    /// To read everything.
    Read,
    /// To read everything, or as a host what concerns itself. The service checks which.
    Look,
    /// To act for any host, or as a host for itself. The service checks which.
    Join,
    /// To find the service.
    Reach,
}

impl Right {
    /// The roles that have it.
    pub const fn roles(self) -> &'static [Role] {
        match self {
            Self::Operate => &[Role::Operator],
            Self::Program => &[Role::Operator, Role::Controller],
            Self::Read => &[Role::Operator, Role::Controller, Role::ReadOnly],
            Self::Look => &[Role::Operator, Role::ReadOnly, Role::Host],
            Self::Join => &[Role::Operator, Role::Host],
            Self::Reach => &[Role::Operator, Role::Controller, Role::ReadOnly, Role::Host],
        }
    }
}

/// The certificates that are not hosts, by their DNS names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Of operators.
    pub operators: Vec<String>,
    /// Of controllers. Only switches have them.
    pub controllers: Vec<String>,
    /// Of clients that may only read.
    pub read_only: Vec<String>,
}

impl Roles {
    /// Reads the table `[roles]` of a configuration file; `controllers` only where `of_switch`.
    pub fn read(value: Value<'_>, of_switch: bool) -> Option<Self> {
        let t = value.table("a table: { operators = [\"NAME\"], read_only = [\"NAME\"] }")?;
        let names = |field| t.items(field, "a list of names: [\"ops.example\"]", |v| v.string());
        Some(Self {
            operators: names("operators"),
            controllers: if of_switch {
                names("controllers")
            } else {
                Vec::new()
            },
            read_only: names("read_only"),
        })
    }

    /// The lists of `self` that are not empty, the others from `other`.
    pub fn or(self, other: Self) -> Self {
        let list = |mine: Vec<String>, other| if mine.is_empty() { other } else { mine };
        Self {
            operators: list(self.operators, other.operators),
            controllers: list(self.controllers, other.controllers),
            read_only: list(self.read_only, other.read_only),
        }
    }

    /// The role of a client. With several names, the highest one.
    pub fn of(&self, peer: &Peer) -> Role {
        self.find(peer).0
    }

    /// A client with its role.
    pub fn caller(&self, peer: Arc<Peer>) -> Caller {
        let (role, name) = self.find(&peer);
        Caller {
            name,
            ..Caller::new(peer, role)
        }
    }

    /// The role of a client, and the index of its name that has it.
    fn find(&self, peer: &Peer) -> (Role, usize) {
        let Some(names) = &peer.names else {
            return (Role::Operator, 0);
        };
        let index = |list: &[String]| {
            names
                .iter()
                .position(|n| list.iter().any(|l| n.eq_ignore_ascii_case(l)))
        };
        let listed = [
            (&self.operators, Role::Operator),
            (&self.controllers, Role::Controller),
            (&self.read_only, Role::ReadOnly),
        ];
        let mut listed = listed.into_iter();
        let found = listed.find_map(|(list, role)| Some((role, index(list)?)));
        found.unwrap_or((Role::Host, 0))
    }
}

/// The client of a request. An extension of each request to a service behind [`guard`], as `Arc<Caller>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its connection.
    pub peer: Arc<Peer>,
    /// Its role.
    pub role: Role,
    /// Index of the name of its certificate that has the role.
    name: usize,
    object: OnceLock<String>,
}

impl Caller {
    /// A client by the first name of its certificate.
    pub fn new(peer: Arc<Peer>, role: Role) -> Self {
        Self {
            peer,
            role,
            name: 0,
            object: OnceLock::new(),
        }
    }

    /// Says what the call is about, for the audit log. The first one counts.
    pub fn concerns(&self, object: impl Into<String>) {
        let _ = self.object.set(audit::cut(&object.into()).into_owned());
    }

    /// What the call is about; empty if that is not known.
    pub fn object(&self) -> &str {
        self.object.get().map_or("", String::as_str)
    }

    /// The client of `request`.
    ///
    /// # Errors
    /// The request did not pass [`guard`].
    pub fn of<T>(request: &Request<T>) -> Result<Arc<Self>, Status> {
        let caller = request.extensions().get::<Arc<Self>>().cloned();
        caller.ok_or_else(|| Status::internal("the client of this request is unknown"))
    }

    /// Whether it is the host of this name, or may act for it.
    pub fn may_be(&self, host: &str) -> bool {
        self.role == Role::Operator || self.role == Role::Host && self.has_name(host)
    }

    /// Whether its certificate has this name.
    pub fn has_name(&self, name: &str) -> bool {
        let names = self.peer.names.iter().flatten();
        names.into_iter().any(|n| n.eq_ignore_ascii_case(name))
    }

    /// The name that has its role, of a host the first one; without a certificate, `uid N` or its IP address.
    pub fn identity(&self) -> &str {
        match &self.peer.names {
            None => self
                .peer
                .address
                .rsplit_once(':')
                .map_or(&self.peer.address, |(ip, _)| ip),
            Some(names) => names
                .get(self.name)
                .map_or("a certificate without a DNS name", String::as_str),
        }
    }

    /// A refusal of what it may not do; `rule` says who may.
    pub fn denied(&self, what: impl Into<String>, rule: impl Into<String>) -> Denied {
        Denied {
            who: self.to_string(),
            what: what.into(),
            rule: rule.into(),
        }
    }

    /// Refuses if it may not act for `host`. `what` is what it wants to do.
    pub fn check_host(&self, host: &str, what: &str) -> Result<(), Denied> {
        if self.may_be(host) {
            return Ok(());
        }
        let what = format!("{what} as host {host:?}");
        Err(self.denied(
            what,
            "a host acts as itself alone, under a name of its certificate; an operator, for any host",
        ))
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, role, .. } = self;
        match peer.names {
            Some(_) => write!(f, "{} ({role}, from {})", self.identity(), peer.address),
            None => write!(f, "{} ({role})", peer.address),
        }
    }
}

/// A client may not do what it wants to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} may not {what}: {rule}")]
pub struct Denied {
    who: String,
    what: String,
    rule: String,
}

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        Status::permission_denied(denied.to_string())
    }
}

/// Running calls with one certificate. A process has one for each of its ranks and groups; who only reads has a few.
const CALLS_MAX: usize = 8192;
const CALLS_OF_READER_MAX: usize = 64;
/// Bytes of the answers to hosts and readers with one certificate that are not taken: a call is refused then.
const ANSWERS_MAX: usize = 128 << 20;
/// Bytes of a refusal to a host or reader. A connection has as many as calls if its client takes none, and no share counts them.
const REFUSAL_MAX: usize = 4 << 10;

/// Who may call a service.
#[derive(Debug)]
pub struct Access {
    roles: watch::Sender<Roles>,
    audit: Option<AuditLog>,
    calls: Shares,
    /// Large requests that have not come whole.
    large: Shares,
    /// Bytes of answers that are not taken.
    answers: Shares,
}

impl Default for Access {
    fn default() -> Self {
        Self::new(Roles::default(), None)
    }
}

impl Access {
    /// By the roles of certificates. The log has a line for each call that is more than reading.
    pub fn new(roles: Roles, audit: Option<AuditLog>) -> Self {
        Self {
            roles: watch::Sender::new(roles),
            audit,
            calls: Shares::default(),
            large: Shares::default(),
            answers: Shares::default(),
        }
    }

    /// Sets the roles, of a service at `address`. Running answers of clients that get another role end.
    ///
    /// # Errors
    /// With TLS, if no certificate could change anything; then nothing changes.
    pub fn set_roles(&self, address: &Address, roles: Roles) -> Result<(), TransportError> {
        check_roles(address, &roles)?;
        self.roles.send_replace(roles);
        Ok(())
    }

    /// Closes the audit log, after the services behind it have stopped.
    pub async fn close_log(&self) {
        if let Some(audit) = &self.audit {
            audit.close().await;
        }
    }

    /// Ends when this client has another role than it had.
    async fn role_changes(&self, caller: Arc<Caller>) -> Status {
        let mut roles = self.roles.subscribe();
        let other = roles.wait_for(|roles| roles.of(&caller.peer) != caller.role);
        // Cannot fail: this access has the sender.
        let role = other.await.map_or(caller.role, |roles| roles.of(&caller.peer));
        Status::permission_denied(format!("{caller} is {role} now: call again"))
    }
}

/// Whether certificates could change anything at a service.
///
/// # Errors
/// With TLS, if none could.
pub fn check_roles(address: &Address, roles: &Roles) -> Result<(), TransportError> {
    let is_tls = matches!(address, Address::Tcp { tls: true, .. });
    match is_tls && roles.operators.is_empty() && roles.controllers.is_empty() {
        true => Err(TransportError::NoOperators(address.clone())),
        false => Ok(()),
    }
}

/// Like [`Listener::bind`], for services behind [`guard`].
///
/// # Errors
/// As [`Listener::bind`]; and with TLS, if no certificate could change anything.
pub async fn listen(
    address: &Address,
    security: &Security,
    access: &Access,
) -> Result<Listener, TransportError> {
    check_roles(address, &access.roles.borrow())?;
    Listener::bind(address, security).await
}

/// [`listen`], and [`Listener::serve`].
///
/// # Errors
/// As [`listen`].
pub async fn serve(
    address: &Address,
    security: &Security,
    access: &Access,
    routes: Routes,
) -> Result<Server, TransportError> {
    Ok(listen(address, security, access).await?.serve(routes))
}

tokio::task_local! {
    static CALL: Option<Arc<Share>>;
}

/// Of the running calls of a certificate, until it is dropped.
#[derive(Debug)]
pub struct RunningCall {
    _share: Option<Arc<Share>>,
}

impl RunningCall {
    /// The call that runs here. Work that goes on if its client goes keeps this until its end: then nobody has more of it than calls.
    pub fn current() -> Self {
        let share = CALL.try_with(Clone::clone);
        Self {
            _share: share.ok().flatten(),
        }
    }
}

/// Checks each call of a service. A method needs the right that `rights` returns for its name; one without cannot be called.
pub fn guard<S>(access: &Arc<Access>, rights: fn(&str) -> Option<Right>, service: S) -> Guarded<S> {
    let access = access.clone();
    let guard = Guard { access, rights };
    Guarded { guard, service }
}

#[derive(Clone, Debug)]
struct Guard {
    access: Arc<Access>,
    rights: fn(&str) -> Option<Right>,
}

/// A call that may be made, or not.
struct Admission {
    caller: Arc<Caller>,
    method: String,
    denied: Option<Denied>,
    /// Where its outcome is noted.
    audit: Option<AuditLog>,
    /// Of the running calls of its certificate.
    share: Option<Arc<Share>>,
}

impl Guard {
    fn admit<B>(&self, request: &http::Request<B>) -> Result<Admission, Status> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let right = (self.rights)(method).ok_or_else(|| Status::unimplemented(audit::cut(method)))?;
        let peer = request.extensions().get::<Arc<Peer>>().cloned();
        let peer = peer.ok_or_else(|| Status::internal("the client of this request is unknown"))?;
        let caller = self.access.roles.borrow().caller(peer);
        let role = caller.role;
        let most = match role {
            Role::ReadOnly => CALLS_OF_READER_MAX,
            _ => CALLS_MAX,
        };
        let share = match &caller.peer.names {
            None => None,
            Some(names) => {
                let share = self.access.calls.take(names, most).ok_or_else(|| {
                    Status::resource_exhausted(format!(
                        "{most} calls with this certificate have not ended: end some"
                    ))
                })?;
                Some(Arc::new(share))
            }
        };
        let denied = (!right.roles().contains(&role)).then(|| {
            let roles: Vec<String> = right.roles().iter().map(Role::to_string).collect();
            let rule = format!("the role that may: {}", roles.join(" or "));
            caller.denied(format!("call {method}"), rule)
        });
        let only_reads = matches!(right, Right::Read | Right::Look | Right::Reach);
        Ok(Admission {
            caller: Arc::new(caller),
            method: method.to_owned(),
            denied,
            audit: self.access.audit.clone().filter(|_| !only_reads),
            share,
        })
    }
}

impl Admission {
    /// Notes how the call ended; a stream, how it began.
    fn note(&self, response: &http::Response<Body>) {
        let Some(audit) = &self.audit else { return };
        match Status::from_header_map(response.headers()).filter(|s| s.code() != Code::Ok) {
            Some(status) => {
                let code = format!("{:?}", status.code());
                audit.add(&self.caller, &self.method, &code, status.message());
            }
            None => audit.add(&self.caller, &self.method, "ok", ""),
        }
    }
}

/// Refuses a call whose certificate has too many bytes of answers that wait.
fn has_room(waiting: &Share) -> Result<(), Status> {
    let bytes = waiting.of_all();
    match bytes < ANSWERS_MAX {
        true => Ok(()),
        false => Err(Status::resource_exhausted(format!(
            "answers of {bytes} bytes to this certificate have not been taken: take them, or end their calls"
        ))),
    }
}

/// A refusal without its details and the end of its message, if it is long: it has what the client has written.
fn shortened(answer: http::Response<Body>) -> http::Response<Body> {
    let bytes: usize = answer.headers().values().map(http::HeaderValue::len).sum();
    if bytes <= REFUSAL_MAX {
        return answer;
    }
    match Status::from_header_map(answer.headers()) {
        Some(status) => Status::new(status.code(), audit::cut(status.message())).into_http(),
        None => answer,
    }
}

/// A service behind [`guard`].
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    guard: Guard,
    service: S,
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let admission = match self.guard.admit(&request) {
            Ok(admission) => admission,
            Err(status) => return Box::pin(ready(Ok(status.into_http()))),
        };
        if let Some(denied) = admission.denied.clone() {
            tracing::info!(%denied, "refused");
            let response = Status::from(denied).into_http();
            admission.note(&response);
            return Box::pin(ready(Ok(response)));
        }
        request.extensions_mut().insert(admission.caller.clone());
        let mut waiting = None;
        if matches!(admission.caller.role, Role::Host | Role::ReadOnly) {
            let names = admission.caller.peer.names.as_deref().unwrap_or_default();
            let Access { large, answers, .. } = &*self.guard.access;
            request = request.map(|body| Body::new(Bounded::new(body, large, names)));
            waiting = Some(answers.none(names));
        }
        if let Err(full) = waiting.as_ref().map_or(Ok(()), has_room) {
            return Box::pin(ready(Ok(full.into_http())));
        }
        let call = CALL.scope(admission.share.clone(), self.service.call(request));
        let access = self.guard.access.clone();
        Box::pin(async move {
            let mut response = call.await?;
            admission.note(&response);
            if waiting.is_some() {
                response = shortened(response);
            }
            let Admission { caller, share, .. } = admission;
            let revoked = Box::pin(async move { access.role_changes(caller).await });
            // Others may have been answered meanwhile.
            if let Err(full) = waiting.as_ref().map_or(Ok(()), has_room) {
                return Ok(full.into_http());
            }
            Ok(response.map(|body| Body::new(Answer::new(body, revoked, share, waiting))))
        })
    }
}

/// The methods of a `.proto` file, for tests of tables of rights.
pub fn methods(proto: &str) -> Vec<&str> {
    let rpcs = proto.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
    rpcs.filter_map(|rpc| rpc.split('(').next()).collect()
}

/// Why a table of calls of a document is not that of a service, for tests: a method needs no right, or a row is missing, is of no method, or
/// names other roles. The rows are those below `heading`: method, roles, and more.
pub fn document_faults(
    document: &str,
    heading: &str,
    proto: &str,
    right: fn(&str) -> Option<Right>,
) -> Vec<String> {
    let section = document
        .split("\n## ")
        .find(|section| section.starts_with(heading));
    let rows = section
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    let rows: Vec<(&str, &str)> = rows
        .filter_map(|row| row.split_once("` | "))
        .filter_map(|(method, rest)| Some((method, rest.split(" |").next()?)))
        .collect();
    let said: Vec<(&str, String)> = methods(proto)
        .into_iter()
        .map(|method| {
            let roles = right(method).map_or(&[][..], Right::roles);
            let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
            (method, roles.join(", "))
        })
        .collect();
    let has = |row: &(&str, &str)| {
        said.iter()
            .any(|(method, roles)| (*method, roles.as_str()) == *row)
    };
    let is_there = |method: &str| rows.iter().any(|(row, _)| *row == method);
    let wrong = rows
        .iter()
        .filter(|row| !has(row))
        .map(|row| format!("{row:?} is not what the service does"));
    let missing = said
        .iter()
        .filter(|(method, roles)| roles.is_empty() || !is_there(method));
    wrong
        .chain(missing.map(|(method, roles)| format!("{method} ({roles}) has no row")))
        .collect()
}

#[cfg(test)]
mod tests;
