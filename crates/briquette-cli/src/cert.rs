//! `briquette cert`: certificates with which ranks authenticate each other.
//!
//! Creates a certificate authority for the run and one certificate signed by it, which all ranks share: `ca.pem`,
//! `cert.pem`, `key.pem`. Any process that has the directory can be a rank, and no other process can, whatever public
//! authorities sign. The authority's key is deleted at once, so no further certificate can be signed. To exclude a
//! machine, make a new directory and copy it to the others.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

/// The name in every rank's certificate, on whichever machine it runs.
pub const NAME: &str = "briquette";

/// The certificate of the authority, the only one that ranks trust.
pub const AUTHORITY: &str = "ca.pem";
/// Certificate shared by all ranks.
pub const CERTIFICATE: &str = "cert.pem";
/// Private key of the certificate, which must stay secret.
pub const KEY: &str = "key.pem";

/// Time by which the validity begins before the certificates are made, since clocks of machines differ.
const BEFORE: Duration = Duration::DAY;

const HELP: &str = "\
Example:
  briquette cert --out certs
  scp -pr certs host2:            (to every machine)
  briquette launch --tls certs --nodes host1,host2 …            (on every machine)

Every rank shows this certificate, and accepts only what its authority signed, as server and as client. The authority's key is \
thrown away, so nobody can sign another. Keep key.pem secret: whoever has it, and the token, can take part.";

/// Makes the certificates with which ranks on several machines speak TLS.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub struct Cert {
    /// Directory for ca.pem, cert.pem and key.pem; created if needed.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Days for which the certificates are valid.
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..))]
    pub days: u16,
    /// A further name or address that the certificate is for, besides `briquette`; may be given several times.
    #[arg(long = "name", value_name = "NAME", value_parser = name)]
    pub names: Vec<String>,
    /// Overwrite files that are there. Ranks that have the old ones do not know ranks that have the new ones.
    #[arg(long)]
    pub force: bool,
}

/// Parses a name that a certificate can be issued for.
fn name(text: &str) -> Result<String, String> {
    let is_none = text.is_empty() || text.contains(|c: char| c.is_whitespace() || c.is_control());
    if is_none { Err("it is not the name or address of a host".into()) } else { Ok(text.to_owned()) }
}

/// Contents of the three files, and the end of their validity.
struct Made {
    authority: String,
    certificate: String,
    key: String,
    until: OffsetDateTime,
}

impl Cert {
    /// Writes the files, and returns the message for the user.
    ///
    /// # Errors
    /// If files exist and `force` is not given, a name is invalid in a certificate, or a file cannot be written.
    pub fn run(&self) -> Result<String> {
        let files = [AUTHORITY, CERTIFICATE, KEY];
        let shown = self.out.display();
        if let Some(file) = files.iter().find(|file| !self.force && self.out.join(file).symlink_metadata().is_ok()) {
            bail!("{shown} has a {file} already: choose another --out, or overwrite it with --force");
        }
        self.names.iter().try_for_each(|text| name(text).map(drop)).map_err(|problem| anyhow!("--name: {problem}"))?;
        let made = self.make()?;
        fs::create_dir_all(&self.out).with_context(|| format!("--out {shown} cannot be made"))?;
        // The key comes first: if it cannot be written, there is no certificate without a key.
        for (file, text) in [(KEY, &made.key), (CERTIFICATE, &made.certificate), (AUTHORITY, &made.authority)] {
            let path = self.out.join(file);
            write(&path, text, file == KEY).with_context(|| format!("{} cannot be written", path.display()))?;
        }
        Ok(format!(
            "{shown} has {AUTHORITY}, {CERTIFICATE} and {KEY}, valid until {} (UTC).\nNext: copy {shown} to every machine, keep \
             {KEY} secret, and start the ranks with `briquette launch --tls {shown} …`.",
            made.until.date()
        ))
    }

    fn make(&self) -> Result<Made> {
        let now = OffsetDateTime::now_utc();
        let until = now + Duration::days(self.days.into());
        let params = |names: Vec<String>, title: &str| -> Result<CertificateParams> {
            let shown = names.join(", ");
            let mut params = CertificateParams::new(names).with_context(|| {
                format!("--name {shown}: a certificate is for names of ASCII letters and addresses")
            })?;
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, title);
            (params.not_before, params.not_after) = (now - BEFORE, until);
            Ok(params)
        };

        let mut authority = params(vec![], "Briquette authority of one run")?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // Lives until the end of this function.
        let signing = KeyPair::generate()?;
        let signed = authority.self_signed(&signing)?;

        let names = std::iter::once(NAME.to_owned()).chain(self.names.iter().cloned()).collect();
        let mut rank = params(names, "Briquette rank")?;
        rank.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        rank.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        rank.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = rank.signed_by(&key, &Issuer::new(authority, signing))?;
        Ok(Made { authority: signed.pem(), certificate: certificate.pem(), key: key.serialize_pem(), until })
    }
}

/// Writes a file, replacing an old one. A secret file is readable by its owner alone from the beginning.
fn write(path: &Path, text: &str, secret: bool) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if secret { 0o600 } else { 0o644 });
    #[cfg(not(unix))]
    let _ = secret;
    options.open(path)?.write_all(text.as_bytes())
}
