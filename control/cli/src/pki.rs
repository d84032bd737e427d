use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use castnet_console::exit::{self, Failure, Outcome};
use castnet_console::files::{self, Place};
use castnet_console::output::{Done, Output};
use castnet_console::units::plural;
use castnet_proto::part_file;
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData,
};
use serde::Serialize;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Makes an authority and certificates for a lab
#[derive(Debug, Args)]
#[command(
    after_help = "A certificate is for a client and for a server. Servers know a client by its names: NAME and those of --san. What a name
may do, [roles] of the controller and of the switches say; a name that they do not list is a host's, and joins groups as that host.

Examples:
  castnet pki init pki                                        pki/ca.pem and pki/ca.key
  castnet pki issue pki leaf1 --san leaf1.example             pki/leaf1.pem and pki/leaf1.key: for a switch at https://leaf1.example:7471
  castnet pki issue pki c1 --san c1.example                   for the controller
  castnet pki issue pki ops                                   for an operator
  castnet pki issue pki h1                                    for host h1
  castnet pki issue pki h1 --force                            replaces it, for the same readers; services read it again by themselves"
)]
pub(crate) struct PkiCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Makes an authority: DIR/ca.pem for everybody, DIR/ca.key for nobody but this folder
    Init {
        /// Its folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        #[command(flatten)]
        how: How,
    },
    /// Makes a certificate: DIR/NAME.pem and DIR/NAME.key
    Issue {
        /// The folder of the authority
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The first name of the certificate: that of the host, switch, controller or operator
        #[arg(value_name = "NAME")]
        name: String,
        /// A further DNS name, or an IP address; may be given again. A server needs those by which clients reach it
        #[arg(long = "san", value_name = "NAME|IP")]
        names: Vec<String>,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Debug, Args)]
struct How {
    /// How long it is valid, at most as long as its authority [default: 3650 of an authority, 365 of others]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: Option<u32>,
    /// Replaces files that exist
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Serialize)]
struct Made {
    cert: String,
    key: String,
    names: Vec<String>,
    days: u32,
}

impl PkiCommand {
    pub(crate) fn run(self, output: Output) -> Outcome {
        let done = match self.verb {
            Verb::Init { folder, how } => init(&folder, &how)?,
            Verb::Issue {
                folder,
                name,
                names,
                how,
            } => issue(&folder, &name, names, &how)?,
        };
        output.show(&done)
    }
}

/// The files of a certificate.
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(folder: &Path, name: &str) -> Self {
        Self {
            cert: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
        }
    }

    fn write(&self, cert: &str, key: &str, force: bool) -> Outcome {
        let all = [(&self.key, key, 0o600), (&self.cert, cert, 0o644)];
        if !force && let Some((path, ..)) = all.iter().find(|(path, ..)| path.exists()) {
            return Err(exists(path));
        }
        let [key, cert] = all.map(|(path, text, mode)| Part::new(path, text, mode));
        // Both are whole before one of them is replaced.
        let (key, cert) = (key?, cert?);
        key.place(force)?;
        cert.place(force)
    }
}

fn exists(path: &Path) -> Failure {
    Failure::usage(format!("{} exists", path.display())).next("--force replaces it")
}

/// A whole file beside its place, where nobody sees it half written. What has not got there is removed on drop.
struct Part {
    place: PathBuf,
    part: PathBuf,
}

impl Part {
    /// Beside the file that a link leads to.
    fn new(path: &Path, text: &str, mode: u32) -> Outcome<Self> {
        let failed = |error| exit::cannot_write(path, &error);
        let Place::File(place) = files::place(path).map_err(failed)? else {
            return Err(Failure::usage(format!(
                "{} is not a regular file",
                path.display()
            )));
        };
        let (part, mut file) = part_file::create(&place, OpenOptions::new().mode(mode)).map_err(failed)?;
        let part = Self { place, part };
        keep_readers(&part.place, &file)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        Ok(part)
    }

    fn place(self, force: bool) -> Outcome {
        let placed = match force {
            true => fs::rename(&self.part, &self.place),
            // Fails where there is one by now.
            false => fs::hard_link(&self.part, &self.place),
        };
        placed.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(&self.place),
            _ => exit::cannot_write(&self.place, &error),
        })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It is gone after a rename.
        let _ = fs::remove_file(&self.part);
    }
}

/// Who may read the file at `place` may read the one that replaces it, such as a service with a user of its own. Fails if this user cannot give
/// a file to that group.
fn keep_readers(place: &Path, file: &File) -> Outcome {
    let Ok(old) = fs::metadata(place) else {
        return Ok(());
    };
    // Others than root cannot give a file away.
    let owner = (file.metadata()?.uid() == 0).then_some(old.uid());
    // Before the mode, which is for this owner and group.
    fchown(file, owner, Some(old.gid())).map_err(|error| {
        let (shown, group) = (place.display(), old.gid());
        Failure::failed(format!(
            "cannot give {shown} to group {group}, which has the old one: {error}"
        ))
        .next("run it as root, or as a user of that group")
    })?;
    Ok(file.set_permissions(Permissions::from_mode(old.mode() & 0o777))?)
}

/// What all certificates of an authority have as their issuer. Authorities differ by their keys.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("Castnet authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn valid(params: &mut CertificateParams, now: SystemTime, until: SystemTime) {
    // Clocks differ.
    params.not_before = (now - HOUR).into();
    params.not_after = until.into();
}

fn init(folder: &Path, how: &How) -> Outcome<Done<Made>> {
    let days = how.days.unwrap_or(3650);
    let (mut params, now) = (authority(), SystemTime::now());
    valid(&mut params, now, now + DAY * days);
    let key = KeyPair::generate().map_err(Failure::failed)?;
    let cert = params.self_signed(&key).map_err(Failure::failed)?;
    fs::create_dir_all(folder).map_err(|error| exit::cannot_write(folder, &error))?;
    let files = Files::new(folder, "ca");
    files.write(&cert.pem(), &key.serialize_pem(), how.force)?;
    let shown = folder.display();
    Ok(made(
        &files,
        Vec::new(),
        days,
        format!("{shown}/ca.pem is the authority, for every machine; {shown}/ca.key signs, and stays here"),
    ))
}

fn issue(folder: &Path, name: &str, more: Vec<String>, how: &How) -> Outcome<Done<Made>> {
    if name.eq_ignore_ascii_case("ca") {
        return Err(Failure::usage("ca is the authority's name").next("give the certificate another name"));
    }
    let names: Vec<String> = std::iter::once(name.to_owned()).chain(more).collect();
    if let Some(bad) = names.iter().find(|n| !is_name(n)) {
        return Err(
            Failure::usage(format!("{bad:?} is neither a DNS name nor an IP address"))
                .next("letters, digits, '-', '_' and '.', such as leaf1.example"),
        );
    }
    let pem = exit::read_text(&folder.join("ca.key")).map_err(|failure| {
        failure.next(format!(
            "castnet pki init {} makes an authority",
            folder.display()
        ))
    })?;
    let Files {
        cert: ca,
        key: ca_key,
    } = Files::new(folder, "ca");
    let bad_key = |e| Failure::usage(format!("{}: {e}", ca_key.display()));
    let signer = KeyPair::from_pem(&pem).map_err(bad_key)?;
    let anew = format!(
        "castnet pki init {} --force, and issue all certificates again",
        folder.display()
    );
    let Some(ends) = end(&exit::read_text(&ca)?, &signer.subject_public_key_info()) else {
        let what = format!("{} is not the certificate of {}", ca.display(), ca_key.display());
        return Err(Failure::usage(what).next(format!("put back the two that belong together; or {anew}")));
    };
    let issuer = Issuer::new(authority(), signer);
    let now = SystemTime::now();
    let until = ends.min(now + DAY * how.days.unwrap_or(365));
    let Ok(left) = until.duration_since(now) else {
        return Err(Failure::usage(format!("{} is not valid any more", ca.display())).next(anew));
    };
    // An authority of today has whole days.
    let days = ((left + HOUR).as_secs() / DAY.as_secs()) as u32;
    let mut params = CertificateParams::new(names.clone()).map_err(Failure::usage)?;
    params.distinguished_name = common_name(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    valid(&mut params, now, until);
    let key = KeyPair::generate().map_err(Failure::failed)?;
    let cert = params.signed_by(&key, &issuer).map_err(Failure::failed)?;
    let files = Files::new(folder, name);
    files.write(&cert.pem(), &key.serialize_pem(), how.force)?;
    let count = plural(names.len(), "name");
    let as_long = match until == ends {
        true => ", as long as its authority",
        false => "",
    };
    let sentence = format!(
        "{} has {count} and is valid for {}{as_long}\n--tls-ca {} --tls-cert {} --tls-key {}",
        files.cert.display(),
        plural(days as usize, "day"),
        ca.display(),
        files.cert.display(),
        files.key.display(),
    );
    Ok(made(&files, names, days, sentence))
}

/// When the certificate of a PEM file ends that has this public key, in DER.
fn end(pem: &str, key: &[u8]) -> Option<SystemTime> {
    let certs = CertificateDer::pem_slice_iter(pem.as_bytes()).flatten();
    let ends = certs.filter_map(|der| {
        let cert = EndEntityCert::try_from(&der).ok()?;
        if *cert.subject_public_key_info() != *key {
            return None;
        }
        // The library reads it only to say that it is over.
        let last = UnixTime::since_unix_epoch(Duration::MAX);
        match cert.verify_for_usage(&[], &[], &[], last, KeyUsage::server_auth(), None, None) {
            Err(webpki::Error::CertExpired { not_after, .. }) => {
                Some(Duration::from_secs(not_after.as_secs()))
            }
            _ => None,
        }
    });
    ends.max().and_then(|end| SystemTime::UNIX_EPOCH.checked_add(end))
}

fn made(files: &Files, names: Vec<String>, days: u32, sentence: String) -> Done<Made> {
    let facts = Made {
        cert: files.cert.display().to_string(),
        key: files.key.display().to_string(),
        names,
        days,
    };
    Done { facts, sentence }
}

/// Whether it is a DNS name or an IP address; as a file name, it stays in its folder.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_ip = text.parse::<std::net::IpAddr>().is_ok();
    is_ip || text.len() <= 253 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use castnet_proto::transport::{Address, Security, TlsFiles, connect, serve};
    use tonic::service::Routes;

    use super::*;

    const HOW: How = How {
        days: None,
        force: false,
    };

    #[tokio::test]
    async fn what_it_makes_works_and_is_never_overwritten_by_accident() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = &folder.path().join("pki");
        let missing = issue(folder, "h1", Vec::new(), &HOW).expect_err("no authority");
        assert!(missing.text().contains("castnet pki init"), "{}", missing.text());
        init(folder, &HOW).expect("an authority");
        issue(folder, "leaf1", vec!["127.0.0.1".into()], &HOW).expect("a server's");
        issue(folder, "ops", Vec::new(), &HOW).expect("a client's");
        let security = |name: &str| Security {
            tls: Some(TlsFiles {
                ca: folder.join("ca.pem"),
                cert: folder.join(format!("{name}.pem")),
                key: folder.join(format!("{name}.key")),
            }),
            ..Security::default()
        };
        let listen: Address = "https://127.0.0.1:0".parse().expect("an address");
        let server = serve(&listen, &security("leaf1"), Routes::default())
            .await
            .expect("a server");
        connect(server.address(), &security("ops"))
            .await
            .expect("a connection");

        for key in ["ca.key", "ops.key"] {
            let mode = fs::metadata(folder.join(key))
                .expect("a key")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        let old = fs::read(folder.join("ops.key")).expect("a key");
        for again in [init(folder, &HOW), issue(folder, "ops", Vec::new(), &HOW)] {
            let refused = again.expect_err("it exists").text();
            assert!(refused.contains("--force"), "{refused}");
        }
        assert_eq!(fs::read(folder.join("ops.key")).expect("a key"), old);
        let force = How { force: true, ..HOW };
        issue(folder, "ops", Vec::new(), &force).expect("a new one");
        assert_ne!(fs::read(folder.join("ops.key")).expect("a key"), old);
        connect(server.address(), &security("ops"))
            .await
            .expect("a connection");
        assert_eq!(
            fs::read_dir(folder).expect("a folder").count(),
            6,
            "no parts are left"
        );
        // A link stays one, and the services behind it get the new file.
        let (link, file) = (folder.join("ops.key"), folder.join("moved"));
        fs::rename(&link, &file).expect("moved");
        std::os::unix::fs::symlink("moved", &link).expect("a link");
        let old = fs::read(&file).expect("a key");
        issue(folder, "ops", Vec::new(), &force).expect("a new one");
        assert!(link.is_symlink());
        assert_ne!(fs::read(&file).expect("a key"), old);
    }

    #[test]
    fn a_pair_is_replaced_as_a_whole_and_issued_by_the_authority_of_its_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let force = How { force: true, ..HOW };
        init(folder, &HOW).expect("an authority");
        issue(folder, "ops", Vec::new(), &HOW).expect("a certificate");
        let pair = || ["ops.key", "ops.pem"].map(|name| fs::read(folder.join(name)).expect("a file"));
        let old = pair();
        // The second file cannot be written.
        let parts = (0..part_file::NAMES_MAX).map(|n| part_file::name(&folder.join("ops.pem"), n));
        let parts: Vec<PathBuf> = parts.collect();
        for part in &parts {
            fs::write(part, "").expect("written");
        }
        let left = issue(folder, "ops", Vec::new(), &force).expect_err("no certificate");
        assert!(left.what.contains("remove"), "{}", left.what);
        assert_eq!(pair(), old);
        // What a kill has left is in nobody's way.
        fs::remove_file(&parts[1]).expect("removed");
        issue(folder, "ops", Vec::new(), &force).expect("replaced");
        assert_ne!(pair(), old);

        let ca = fs::read(folder.join("ca.pem")).expect("a certificate");
        init(folder, &force).expect("another authority");
        let new = fs::read(folder.join("ca.pem")).expect("a certificate");
        fs::write(folder.join("ca.pem"), &ca).expect("written");
        let other = issue(folder, "h1", Vec::new(), &HOW).expect_err("of another key");
        assert_eq!(other.code(), 2);
        assert!(
            other.text().contains("ca.pem is not the certificate of"),
            "{}",
            other.text()
        );
        // While an authority replaces another one, hosts accept both.
        fs::write(folder.join("ca.pem"), [ca, new].concat()).expect("written");
        issue(folder, "h1", Vec::new(), &HOW).expect("the second one has the key");
    }

    #[test]
    fn who_may_read_a_key_may_read_its_successor() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        init(folder, &HOW).expect("an authority");
        issue(folder, "leaf1", Vec::new(), &HOW).expect("a certificate");
        let key = folder.join("leaf1.key");
        let access = || {
            let file = fs::metadata(&key).expect("a key");
            (file.uid(), file.gid(), file.mode() & 0o777)
        };
        let (user, group, _) = access();
        // Only root can give it to others.
        let (owner, readers) = match user {
            0 => (1234, 2345),
            _ => (user, group),
        };
        std::os::unix::fs::chown(&key, Some(owner), Some(readers)).expect("given away");
        fs::set_permissions(&key, Permissions::from_mode(0o640)).expect("a mode");
        let old = fs::read(&key).expect("a key");
        issue(folder, "leaf1", Vec::new(), &How { force: true, ..HOW }).expect("another one");
        assert_ne!(fs::read(&key).expect("a key"), old);
        assert_eq!(access(), (owner, readers, 0o640));
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let days = |days| How {
            days: Some(days),
            ..HOW
        };
        init(folder, &days(2)).expect("an authority");
        let pem_end = |name: &str| {
            let file = |kind| fs::read_to_string(folder.join(format!("{name}.{kind}"))).expect("a file");
            let key = KeyPair::from_pem(&file("key")).expect("a key");
            end(&file("pem"), &key.subject_public_key_info()).expect("its certificate")
        };
        for (name, how, valid, sentence) in [
            ("h1", HOW, 2, "valid for 2 days, as long as its authority"),
            ("h2", days(1), 1, "valid for 1 day\n"),
        ] {
            let done = issue(folder, name, Vec::new(), &how).expect("a certificate");
            assert_eq!(done.facts.days, valid);
            assert!(done.sentence.contains(sentence), "{}", done.sentence);
        }
        assert_eq!(pem_end("h1"), pem_end("ca"));
        assert!(pem_end("h2") < pem_end("ca"));
    }

    #[test]
    fn names_are_dns_names_and_addresses() {
        for good in ["h1", "leaf1.example", "10.0.0.1", "::1", "a_b"] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "../x", "a b", "-a", "a..b", "a/b", "*.example"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
