//! Secret that ranks share, and a proof of knowing it that does not disclose it.

use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::JoinError;

/// Minimum bytes of a secret: a shorter one can be guessed by trial.
const SHORTEST: usize = 16;

/// Description of a blank secret.
pub(crate) const BLANK: &str = "is blank; it should hold the secret that all ranks share";

/// Secret that all ranks of a world share. It is never sent. Each side proves that it knows the secret by an
/// HMAC-SHA-256 over random numbers that both sides draw.
///
/// It keeps unauthorized processes out of the world. Without [`Certificates`](crate::Certificates), the traffic after
/// the handshake is neither encrypted nor authenticated: an attacker who can read and change it can take a connection
/// over. Use both on a network that you do not control. A word that can be guessed is no secret: create one with
/// `briquette token`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Token(Vec<u8>);

/// Bytes of a proof, and of each random number.
pub(crate) const PROOF: usize = 32;

impl Token {
    /// Creates a token from text; surrounding white space is ignored.
    pub fn new(secret: impl AsRef<str>) -> Token {
        Token(secret.as_ref().trim().as_bytes().to_vec())
    }

    /// Reads a token from a file that only its owner, or the owner's group, can read.
    ///
    /// # Errors
    /// [`JoinError::File`] if the file cannot be read, every user of the machine can read or change it, or the secret
    /// in it is shorter than 16 bytes.
    pub fn read(path: &Path) -> Result<Token, JoinError> {
        let fail = |problem: String| JoinError::File { path: path.to_owned(), problem };
        let make = format!("(umask 077; briquette token > {})", path.display());
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|e| {
            fail(format!(
                "{e}; it should hold the secret that all ranks share: make it once with `{make}` \
                                                   and copy it to every machine"
            ))
        })?;
        exposed(path).map_or(Ok(()), |problem| Err(fail(problem)))?;
        let token = Token::new(text);
        if token.is_empty() {
            return Err(fail(format!(
                "it is empty; it should hold the secret that all ranks share: fill it with `{make}`"
            )));
        }
        token.problem().map_or(Ok(token), |problem| Err(fail(format!("the secret in it {problem}"))))
    }

    /// Returns the defect of the secret, if any.
    pub(crate) fn problem(&self) -> Option<String> {
        let len = self.0.len();
        let is_short = (1..SHORTEST).contains(&len);
        is_short.then(|| {
            format!(
                "has {len} bytes, and {SHORTEST} are the fewest that keep others out: `briquette token` makes one of 64"
            )
        })
    }

    /// Returns whether there is no secret.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Computes the proof over `parts`. Each part is preceded by its length, so that different lists of parts have
    /// different proofs.
    pub(crate) fn prove(&self, parts: &[&[u8]]) -> [u8; PROOF] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Verifies, in constant time, that `proof` is the one over `parts`.
    pub(crate) fn verify(&self, parts: &[&[u8]], proof: &[u8]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

/// Returns the problem and its remedy if every user of this machine can read or change the file. Group access may be
/// intended, for example if an orchestrator distributes secrets. It is allowed, with a warning.
#[cfg(unix)]
fn exposed(path: &Path) -> Option<String> {
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(path).ok()?) & 0o777;
    let shown = path.display();
    if mode & 0o006 != 0 {
        return Some(format!("every user of this machine can read or change it (mode {mode:o}): `chmod 600 {shown}`"));
    }
    if mode & 0o060 != 0 {
        tracing::warn!(
            "{shown}: its group can read or change the secret (mode {mode:o}); `chmod 600 {shown}` keeps it yours"
        );
    }
    None
}

#[cfg(not(unix))]
fn exposed(_: &Path) -> Option<String> {
    None
}

/// Omits the secret itself.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_empty() { "Token(none)" } else { "Token(…)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_token_and_its_parts_only() {
        let token = Token::new("secret\n");
        let proof = token.prove(&[b"client", b"123"]);
        assert!(token.verify(&[b"client", b"123"], &proof));
        assert!(!token.verify(&[b"client1", b"23"], &proof));
        assert!(!Token::new("Secret").verify(&[b"client", b"123"], &proof));
        assert!(!token.verify(&[b"client", b"123"], &proof[..31]));
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    /// Threat S2.
    #[test]
    fn proofs_are_hmac_sha_256() {
        // RFC 4231, test case 2, with the length in front as the only other input.
        let mut mac = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        mac.update(b"what do ya want for nothing?");
        let tag = hex::encode(mac.finalize().into_bytes());
        assert_eq!(tag, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
