//! Lends the host's ssh agent to a sandbox, key by key.
//!
//! Of the agent protocol (draft-ietf-sshm-ssh-agent) only listing and signing
//! pass, and only for the keys that the policy names; everything else is
//! answered with the failure that clients expect of an agent that does not
//! support it. That includes `session-bind@openssh.com`, so a key that its
//! owner restricted to certain hosts does not sign here.
//!
//! What is signed is not looked at: whoever may sign with a key may also log
//! in with it wherever the network rules let them connect.

use std::future::Future;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Largest message, as in OpenSSH (`MAX_AGENT_REPLY_LEN`).
pub const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// How long an agent may take, which may be asking its owner.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the rest of a message may take once it has begun.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;

/// A key that an agent holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The public key as it goes over the wire (RFC 4253, section 6.6).
    pub blob: Vec<u8>,
    pub comment: Vec<u8>,
}

/// What passed through one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub signatures: u64,
    pub refused: u64,
}

/// Serves one client until it closes the connection. `connect` reaches the
/// host's agent; `keys` are `SHA256:…` fingerprints or comments.
pub async fn serve<C, U, F>(
    mut client: C,
    connect: impl FnOnce() -> F,
    keys: &[String],
) -> io::Result<Summary>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    F: Future<Output = io::Result<U>>,
{
    let mut agent = connect().await?;
    let mut summary = Summary::default();
    while let Some(request) = read_request(&mut client).await? {
        let answer = match request.split_first() {
            Some((&REQUEST_IDENTITIES, [])) => {
                let identities = list(&mut agent).await?;
                encode_identities(identities.iter().filter(|one| is_named(one, keys)))
            }
            Some((&SIGN_REQUEST, body)) if may_sign(&mut agent, body, keys).await? => {
                summary.signatures += 1;
                let answer = exchange(&mut agent, &request).await?;
                match answer.first() {
                    Some(&SIGN_RESPONSE) => answer,
                    _ => vec![FAILURE],
                }
            }
            _ => {
                summary.refused += 1;
                vec![FAILURE]
            }
        };
        write_message(&mut client, &answer).await?;
    }
    Ok(summary)
}

/// The keys that an agent holds.
pub async fn list<U>(agent: &mut U) -> io::Result<Vec<Identity>>
where
    U: AsyncRead + AsyncWrite + Unpin,
{
    let answer = exchange(agent, &[REQUEST_IDENTITIES]).await?;
    parse_identities(&answer).ok_or_else(malformed)
}

/// The agent's signature over `data`, as it goes over the wire, or `None`
/// when it declines.
pub async fn sign<U>(
    agent: &mut U,
    key: &[u8],
    data: &[u8],
    flags: u32,
) -> io::Result<Option<Vec<u8>>>
where
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = vec![SIGN_REQUEST];
    write_string(&mut request, key);
    write_string(&mut request, data);
    request.extend_from_slice(&flags.to_be_bytes());
    let answer = exchange(agent, &request).await?;
    match answer.split_first() {
        Some((&SIGN_RESPONSE, mut body)) => {
            let signature = take_string(&mut body).ok_or_else(malformed)?;
            Ok(Some(signature.to_vec()))
        }
        _ => Ok(None),
    }
}

/// As `ssh-add -l` shows it.
pub fn fingerprint(blob: &[u8]) -> String {
    format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(blob)))
}

fn is_named(identity: &Identity, keys: &[String]) -> bool {
    let fingerprint = fingerprint(&identity.blob);
    keys.iter()
        .any(|key| *key == fingerprint || key.as_bytes() == identity.comment)
}

/// Whether the body of a sign request is for a named key that the agent has.
async fn may_sign<U>(agent: &mut U, mut body: &[u8], keys: &[String]) -> io::Result<bool>
where
    U: AsyncRead + AsyncWrite + Unpin,
{
    let Some(blob) = take_string(&mut body) else {
        return Ok(false);
    };
    let whole = take_string(&mut body).is_some() && body.len() == size_of::<u32>();
    if !whole {
        return Ok(false);
    }
    let identities = list(agent).await?;
    let asked = identities.iter().find(|one| one.blob == blob);
    Ok(asked.is_some_and(|identity| is_named(identity, keys)))
}

fn encode_identities<'a>(identities: impl Iterator<Item = &'a Identity>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut count: u32 = 0;
    for identity in identities {
        write_string(&mut body, &identity.blob);
        write_string(&mut body, &identity.comment);
        count += 1;
    }
    let mut message = vec![IDENTITIES_ANSWER];
    message.extend_from_slice(&count.to_be_bytes());
    message.extend_from_slice(&body);
    message
}

/// An agent that has no keys to show may also answer with a failure.
fn parse_identities(message: &[u8]) -> Option<Vec<Identity>> {
    let (kind, mut body) = message.split_first()?;
    match *kind {
        FAILURE => return Some(Vec::new()),
        IDENTITIES_ANSWER => {}
        _ => return None,
    }
    let count = take_u32(&mut body)?;
    let mut identities = Vec::new();
    for _ in 0..count {
        let blob = take_string(&mut body)?.to_vec();
        let comment = take_string(&mut body)?.to_vec();
        identities.push(Identity { blob, comment });
    }
    body.is_empty().then_some(identities)
}

/// `None` at the end of the stream.
async fn read_request<C: AsyncRead + Unpin>(client: &mut C) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if client.read(&mut length[..1]).await? == 0 {
        return Ok(None);
    }
    let rest = async {
        client.read_exact(&mut length[1..]).await?;
        read_body(client, length).await
    };
    timeout(MESSAGE_TIMEOUT, rest).await?.map(Some)
}

async fn exchange<U>(agent: &mut U, request: &[u8]) -> io::Result<Vec<u8>>
where
    U: AsyncRead + AsyncWrite + Unpin,
{
    let both = async {
        write_message(agent, request).await?;
        let mut length = [0; 4];
        agent.read_exact(&mut length).await?;
        read_body(agent, length).await
    };
    timeout(REPLY_TIMEOUT, both).await?
}

async fn read_body<R: AsyncRead + Unpin>(stream: &mut R, length: [u8; 4]) -> io::Result<Vec<u8>> {
    let length = u32::from_be_bytes(length) as usize;
    if length == 0 || length > MESSAGE_BYTES_MAX {
        return Err(malformed());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

async fn write_message<W: AsyncWrite + Unpin>(stream: &mut W, body: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(body.len() + 4);
    write_string(&mut message, body);
    stream.write_all(&message).await?;
    stream.flush().await
}

/// A string of RFC 4251: its length in 32 bits, and its bytes.
pub(super) fn write_string(output: &mut Vec<u8>, bytes: &[u8]) {
    // Messages are bounded far below four gibibytes.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    output.extend_from_slice(&length.to_be_bytes());
    output.extend_from_slice(bytes);
}

fn take_string<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_u32(input)? as usize;
    let (string, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some(string)
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    let (number, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(u32::from_be_bytes(*number))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed ssh agent message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use tokio::net::{UnixListener, UnixStream};

    /// A real ssh-agent with two keys, ended when dropped.
    struct Agent {
        child: Child,
        directory: tempfile::TempDir,
    }

    impl Drop for Agent {
        fn drop(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    fn command(program: &str, directory: &Path, socket: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(directory)
            .env("SSH_AUTH_SOCK", directory.join(socket))
            .stdin(Stdio::null());
        command
    }

    fn output(command: &mut Command) -> (bool, String) {
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    }

    impl Agent {
        fn start() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path();
            let child = Command::new("ssh-agent")
                .args(["-D", "-a", "real"])
                .current_dir(path)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            while !path.join("real").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            for name in ["lent", "kept"] {
                let arguments = ["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name];
                assert!(output(command("ssh-keygen", path, "real").args(arguments)).0);
                assert!(output(command("ssh-add", path, "real").args(["-q", name])).0);
            }
            Self { child, directory }
        }

        /// Serves `lent` beside `real` while `body` runs.
        fn lend(&self, keys: &[&str], body: impl FnOnce(&Path) + Send) {
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            let path = self.directory.path();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let socket = path.join("lent.socket");
            let guard = runtime.enter();
            let listener = UnixListener::bind(&socket).unwrap();
            drop(guard);
            let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    body(path);
                    stop.send(()).unwrap();
                });
                runtime.block_on(async {
                    loop {
                        tokio::select! {
                            _ = &mut stopped => break,
                            accepted = listener.accept() => {
                                let (client, _) = accepted.unwrap();
                                let connect = || UnixStream::connect(path.join("real"));
                                // A client that goes away early is no failure of the test.
                                drop(serve(client, connect, &keys).await);
                            }
                        }
                    }
                });
            });
            std::fs::remove_file(socket).unwrap();
        }
    }

    #[test]
    fn only_named_keys_are_shown_and_sign() {
        let agent = Agent::start();
        let path = agent.directory.path();
        let (_, line) = output(command("ssh-keygen", path, "real").args(["-lf", "lent.pub"]));
        let print = line.split(' ').nth(1).unwrap().to_owned();
        for name in [print.as_str(), "lent"] {
            agent.lend(&[name], |path| {
                let socket = "lent.socket";
                let (listed, keys) = output(command("ssh-add", path, socket).arg("-l"));
                assert!(
                    listed && keys.contains("lent") && !keys.contains("kept"),
                    "{keys}"
                );
                let sign = |key: &str| {
                    std::fs::write(path.join("text"), "text").unwrap();
                    if path.join("text.sig").exists() {
                        std::fs::remove_file(path.join("text.sig")).unwrap();
                    }
                    let arguments = ["-Y", "sign", "-n", "git", "-f", key, "text"];
                    // Without its private half ssh-keygen must ask the agent.
                    output(command("ssh-keygen", path, socket).args(arguments)).0
                };
                for key in ["lent", "kept"] {
                    let public = format!("{key}-only.pub");
                    std::fs::copy(path.join(format!("{key}.pub")), path.join(&public)).unwrap();
                    assert_eq!(sign(&public), key == "lent", "{key}");
                }
            });
        }
    }

    #[test]
    fn nothing_but_listing_and_signing_passes() {
        let agent = Agent::start();
        agent.lend(&["lent", "kept"], |path| {
            let socket = "lent.socket";
            for arguments in [&["-D"][..], &["-d", "lent"], &["-x"], &["new"]] {
                if arguments == ["new"] {
                    let new = ["-q", "-t", "ed25519", "-N", "", "-f", "new"];
                    assert!(output(command("ssh-keygen", path, "real").args(new)).0);
                }
                let mut add = command("ssh-add", path, socket);
                // So that a question for a pass phrase ends at once.
                let add = add.args(arguments).env("SSH_ASKPASS_REQUIRE", "never");
                let (done, text) = output(add);
                assert!(!done, "{arguments:?}: {text}");
            }
            let (_, keys) = output(command("ssh-add", path, "real").arg("-l"));
            assert_eq!(keys.lines().count(), 2, "{keys}");
        });
    }

    #[test]
    fn malformed_answers_of_an_agent_are_refused() {
        let one = Identity {
            blob: b"blob".to_vec(),
            comment: b"comment".to_vec(),
        };
        let message = encode_identities([&one].into_iter());
        assert_eq!(parse_identities(&message), Some(vec![one]));
        assert_eq!(parse_identities(&message[..message.len() - 1]), None);
        assert_eq!(parse_identities(&[&message[..], b"x"].concat()), None);
        assert_eq!(
            parse_identities(&[IDENTITIES_ANSWER, 255, 255, 255, 255]),
            None
        );
        assert_eq!(parse_identities(&[FAILURE]), Some(Vec::new()));
    }
}
