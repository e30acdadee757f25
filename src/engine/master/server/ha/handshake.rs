//! The beginning of a stream: both masters prove that they have the secret, and agree on how the
//! standby catches up.
//!
//! The leader sends a [`Challenge`], the standby a [`Hello`], and the leader a [`Welcome`]. Each is
//! a length of four bytes (little-endian) and JSON. A proof is an HMAC-SHA256 with the secret over
//! both nonces and the message.

use std::io;
use std::time::Duration;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::config::StorePolicy;
use crate::digest::DIGEST_VERSION;
use mcctl_election::ha::{HistoryId, MemberId};

/// The version of the stream. Masters with different ones do not replicate.
pub(super) const STREAM_VERSION: u32 = 2;
/// Maximum time for the whole handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: u32 = 4096;

/// The first message, from the leader.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Challenge {
    pub version: u32,
    /// Version of mcctl that the leader runs, for error messages.
    pub release: String,
    pub nonce: String,
}

/// The standby and its copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub cluster: String,
    pub standby: MemberId,
    /// The history of the copy's last changes; `None` if it is empty or unknown.
    pub history: Option<HistoryId>,
    /// The last change that it contains.
    pub applied: u64,
    /// The newest data format that the standby reads.
    pub format: u8,
    pub release: String,
    /// The address of the standby's RPC port.
    #[serde(default)]
    pub rpc: Option<String>,
    /// `None`: from a release before this field.
    #[serde(default)]
    pub settings: Option<ContinuedSettings>,
    /// The version of the standby's digests. 0: from a release before this field, which has version
    /// 1.
    #[serde(default)]
    pub digest: u8,
    /// The address of the standby's metadata service ([`HaSettings`](super::HaSettings)).
    #[serde(default)]
    pub metadata: Option<String>,
}

/// Settings that clients depend on, and that a new leader continues with its own values. In
/// milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContinuedSettings {
    client_ttl: u64,
    kv_lease_ttl: u64,
}

impl ContinuedSettings {
    /// The settings of a master with this policy.
    pub(super) fn of(policy: &StorePolicy) -> ContinuedSettings {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        ContinuedSettings { client_ttl: ms(policy.client_ttl), kv_lease_ttl: ms(policy.lease_ttl) }
    }

    /// The flags whose values differ, with both values.
    pub(super) fn difference(&self, standby: &ContinuedSettings) -> Option<String> {
        let flags = [
            ("--client-ttl", self.client_ttl, standby.client_ttl),
            ("--default-kv-lease-ttl", self.kv_lease_ttl, standby.kv_lease_ttl),
        ];
        let differing = flags.into_iter().filter(|(_, own, theirs)| own != theirs);
        let texts: Vec<String> =
            differing.map(|(flag, own, theirs)| format!("{flag}: {own} ms here, {theirs} ms there")).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

/// The last message, from the leader: how the standby catches up, or why it cannot follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Welcome {
    pub leader: MemberId,
    /// The history of the leader's changes.
    pub history: HistoryId,
    pub view: u64,
    pub start: StreamStart,
    /// The version of the leader's digests, as in [`Hello`].
    #[serde(default)]
    pub digest: u8,
    /// The address of the leader's metadata service ([`HaSettings`](super::HaSettings)).
    #[serde(default)]
    pub metadata: Option<String>,
}

/// The method by which the standby catches up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StreamStart {
    /// It receives the changes after its last one.
    Changes,
    /// It receives a snapshot, and the changes after it.
    Snapshot,
    /// It cannot follow, for this reason.
    Refused(String),
}

/// A message with the proof that its sender has the secret.
#[derive(Serialize, Deserialize)]
struct Proven {
    /// A message in JSON. The proof refers to these bytes.
    body: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nonce: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
}

/// The errors of a handshake.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("unexpected message from the peer: {0}; is its address the --ha-port of an mcctl master?")]
    Malformed(String),
    #[error("the secrets differ, or only one side has one: check --ha-secret-file on both masters")]
    Secret,
    #[error("the peer's stream version is {found} (release {release}), this release supports {STREAM_VERSION}")]
    Version { found: u32, release: String },
}

/// The secret that the masters of a cluster share.
#[derive(Clone)]
pub struct HaSecret(Option<hmac::Key>);

impl std::fmt::Debug for HaSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "HaSecret(..)" } else { "HaSecret(none)" })
    }
}

impl HaSecret {
    /// Without a secret, every master that reaches the port can follow.
    pub fn none() -> HaSecret {
        HaSecret(None)
    }

    /// Creates a secret from these bytes, which must be the same on all masters.
    pub fn new(bytes: &[u8]) -> HaSecret {
        HaSecret(Some(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    fn prove(&self, role: &str, nonces: [&str; 2], body: &str) -> Option<String> {
        let tag = hmac::sign(self.0.as_ref()?, message(role, nonces, body).as_bytes());
        Some(hex(tag.as_ref()))
    }

    fn check(&self, role: &str, nonces: [&str; 2], body: &str, proof: Option<&str>) -> Result<(), HandshakeError> {
        let Some(key) = &self.0 else {
            return if proof.is_none() { Ok(()) } else { Err(HandshakeError::Secret) };
        };
        let tag = proof.and_then(unhex).ok_or(HandshakeError::Secret)?;
        hmac::verify(key, message(role, nonces, body).as_bytes(), &tag).map_err(|_| HandshakeError::Secret)
    }
}

fn message(role: &str, nonces: [&str; 2], body: &str) -> String {
    format!("mcctl-ha {role}\n{}\n{}\n{body}", nonces[0], nonces[1])
}

fn nonce() -> io::Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("this host has no random numbers"))?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    (digits.len().is_multiple_of(2)).then(|| digits.chunks(2).map(byte).collect())?
}

/// A leader's handshake that has received the standby's message.
pub(super) struct LeaderHandshake {
    pub hello: Hello,
    nonces: [String; 2],
}

impl LeaderHandshake {
    /// Sends the challenge and receives the standby's message.
    ///
    /// # Errors
    /// The peer is not a master with the same secret.
    pub(super) async fn begin(
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        secret: &HaSecret,
    ) -> Result<LeaderHandshake, HandshakeError> {
        let own = nonce()?;
        let release = env!("CARGO_PKG_VERSION").to_owned();
        write(stream, &Challenge { version: STREAM_VERSION, release, nonce: own.clone() }).await?;
        let proven: Proven = read(stream).await?;
        let nonces = [own, proven.nonce.unwrap_or_default()];
        let shown = [nonces[0].as_str(), nonces[1].as_str()];
        if let Err(error) = secret.check("standby", shown, &proven.body, proven.proof.as_deref()) {
            // The reason is not a secret, and the standby's operator needs it.
            let start = StreamStart::Refused(error.to_string());
            let leader = MemberId(0);
            let history = HistoryId(0);
            let digest = DIGEST_VERSION;
            let body = encode(&Welcome { leader, history, view: 0, start, digest, metadata: None })?;
            write(stream, &Proven { body, nonce: None, proof: None }).await?;
            return Err(error);
        }
        Ok(LeaderHandshake { hello: decode(proven.body.as_bytes())?, nonces })
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// The connection ended.
    pub(super) async fn finish(
        &self,
        stream: &mut (impl AsyncWrite + Unpin),
        secret: &HaSecret,
        welcome: &Welcome,
    ) -> Result<(), HandshakeError> {
        let body = encode(welcome)?;
        let proof = secret.prove("leader", [&self.nonces[0], &self.nonces[1]], &body);
        write(stream, &Proven { body, nonce: None, proof }).await
    }
}

/// A standby's side of the handshake.
///
/// # Errors
/// The peer is not a master with the same secret and version.
pub(super) async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    secret: &HaSecret,
    hello: &Hello,
) -> Result<Welcome, HandshakeError> {
    let challenge: Challenge = read(stream).await?;
    if challenge.version != STREAM_VERSION {
        return Err(HandshakeError::Version { found: challenge.version, release: challenge.release });
    }
    let own = nonce()?;
    let body = encode(hello)?;
    let nonces = [challenge.nonce.as_str(), own.as_str()];
    let proof = secret.prove("standby", nonces, &body);
    write(stream, &Proven { body, nonce: Some(own.clone()), proof }).await?;
    let proven: Proven = read(stream).await?;
    let welcome: Welcome = decode(proven.body.as_bytes())?;
    if proven.proof.is_none() && matches!(welcome.start, StreamStart::Refused(_)) {
        return Ok(welcome);
    }
    secret.check("leader", nonces, &proven.body, proven.proof.as_deref())?;
    Ok(welcome)
}

fn encode(message: &impl Serialize) -> Result<String, HandshakeError> {
    serde_json::to_string(message).map_err(|error| HandshakeError::Malformed(error.to_string()))
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HandshakeError> {
    serde_json::from_slice(bytes).map_err(|error| HandshakeError::Malformed(error.to_string()))
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> Result<(), HandshakeError> {
    let body = encode(message)?;
    let mut bytes = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    bytes.extend_from_slice(body.as_bytes());
    Ok(stream.write_all(&bytes).await?)
}

async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, HandshakeError> {
    let length = stream.read_u32_le().await?;
    if length > MESSAGE_BYTES_MAX {
        return Err(HandshakeError::Malformed(format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    decode(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let cluster = "c".to_owned();
        let release = "1".to_owned();
        let standby = MemberId(2);
        let history = Some(HistoryId(1));
        let settings = Some(ContinuedSettings::of(&StorePolicy::default()));
        Hello {
            cluster,
            standby,
            history,
            applied: 9,
            format: 1,
            release,
            rpc: None,
            settings,
            digest: DIGEST_VERSION,
            metadata: None,
        }
    }

    async fn run(
        leader: HaSecret,
        standby: HaSecret,
    ) -> (Result<Hello, HandshakeError>, Result<Welcome, HandshakeError>) {
        let (mut a, mut b) = tokio::io::duplex(4096);
        let leader_id = MemberId(1);
        let history = HistoryId(1);
        let start = StreamStart::Changes;
        let welcome = Welcome { leader: leader_id, history, view: 7, start, digest: DIGEST_VERSION, metadata: None };
        let lead = async {
            let handshake = LeaderHandshake::begin(&mut a, &leader).await?;
            handshake.finish(&mut a, &leader, &welcome).await?;
            Ok(handshake.hello)
        };
        let follow = async { greet(&mut b, &standby, &hello()).await };
        tokio::join!(lead, follow)
    }

    #[tokio::test]
    async fn masters_with_the_same_secret_agree() {
        for secret in [HaSecret::none(), HaSecret::new(b"secret")] {
            let (heard, welcomed) = run(secret.clone(), secret).await;
            assert_eq!(heard.unwrap(), hello());
            assert_eq!(welcomed.unwrap().start, StreamStart::Changes);
        }
    }

    #[test]
    fn messages_of_earlier_releases_have_another_digest_version() {
        let without = |mut message: serde_json::Value| {
            message.as_object_mut().and_then(|fields| fields.remove("digest")).expect("a field");
            message
        };
        let earlier = without(serde_json::to_value(hello()).unwrap());
        assert_eq!(serde_json::from_value::<Hello>(earlier).unwrap(), Hello { digest: 0, ..hello() });
        assert_ne!(DIGEST_VERSION, 0);
    }

    #[test]
    fn different_settings_are_named_with_both_values() {
        let own = ContinuedSettings::of(&StorePolicy::default());
        assert_eq!(own.difference(&own), None);
        let standby = ContinuedSettings { client_ttl: 7_000, ..own };
        assert_eq!(own.difference(&standby).as_deref(), Some("--client-ttl: 10000 ms here, 7000 ms there"));
    }

    #[tokio::test]
    async fn another_secret_is_refused_and_both_sides_report_it() {
        let none = HaSecret::none();
        let one = HaSecret::new(b"one");
        let two = HaSecret::new(b"two");
        for (leader, standby) in [(&one, &two), (&one, &none), (&none, &one)] {
            let (heard, welcomed) = run(leader.clone(), standby.clone()).await;
            assert!(matches!(heard, Err(HandshakeError::Secret)));
            assert!(matches!(welcomed.unwrap().start, StreamStart::Refused(why) if why.contains("--ha-secret-file")));
        }
    }

    #[tokio::test]
    async fn a_leader_without_the_secret_is_not_followed() {
        let (mut a, mut b) = tokio::io::duplex(4096);
        let imitate = async {
            write(&mut a, &Challenge { version: STREAM_VERSION, release: String::new(), nonce: "n".to_owned() })
                .await?;
            let _: Proven = read(&mut a).await?;
            let leader = MemberId(1);
            let history = HistoryId(1);
            let start = StreamStart::Snapshot;
            let body = encode(&Welcome { leader, history, view: 1, start, digest: DIGEST_VERSION, metadata: None })?;
            write(&mut a, &Proven { body, nonce: None, proof: None }).await
        };
        let secret = HaSecret::new(b"secret");
        let (sent, welcomed) = tokio::join!(imitate, async { greet(&mut b, &secret, &hello()).await });
        assert!(sent.is_ok() && matches!(welcomed, Err(HandshakeError::Secret)));
    }
}
