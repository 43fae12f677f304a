//! Secrets that the ranks of a world share: 32 random bytes, as hexadecimal digits.

/// Creates a secret from the system's source of randomness: 64 hexadecimal digits.
///
/// ```
/// let token = briquette_cli::token::new()?;
/// assert_eq!(token.len(), 64);
/// assert_ne!(token, briquette_cli::token::new()?);
/// # Ok::<_, std::io::Error>(())
/// ```
///
/// # Errors
/// If the system provides no randomness, which a running system always does.
pub fn new() -> std::io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|e| std::io::Error::other(format!("the system gives no random bytes for a token: {e}")))?;
    Ok(hex::encode(bytes))
}
