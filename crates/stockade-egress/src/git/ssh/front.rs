//! The SSH server that a client inside the sandbox meets.
//!
//! It asks for no proof of who the client is: that is known by the listener.
//! It opens one session for one command, and refuses everything else that SSH
//! can do.

use std::sync::Arc;
use std::time::Duration;

use russh::keys::PrivateKey;
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Session};
use russh::server::{PublicKeyOffer, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelOpenFailure, MethodKind, MethodSet, Pty, SshId};
use tokio::sync::mpsc;

use super::command::is_protocol;

/// A client that neither sends nor takes anything for so long is gone.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// A command that a client wants to run.
pub struct Request {
    /// Name with which to log in at the server.
    pub user: String,
    pub protocol: Option<String>,
    pub line: Vec<u8>,
    pub channel: Channel<Msg>,
}

/// Answers one client; the command comes out of the other end of `requests`.
pub struct Front {
    requests: mpsc::Sender<Request>,
    user: String,
    protocol: Option<String>,
    channel: Option<Channel<Msg>>,
    opened: Opened,
}

#[derive(PartialEq, Eq)]
enum Opened {
    NotYet,
    Once,
}

/// Settings of the server with this host key.
pub fn config(host_key: &PrivateKey) -> Arc<Config> {
    Arc::new(Config {
        server_id: SshId::Standard("SSH-2.0-stockade".into()),
        methods: MethodSet::from(&[MethodKind::None, MethodKind::PublicKey][..]),
        keys: vec![host_key.clone()],
        inactivity_timeout: Some(IDLE_TIMEOUT),
        max_auth_attempts: 3,
        // Together they bound what one client can make wait here.
        channel_buffer_size: 16,
        window_size: 1024 * 1024,
        ..Config::default()
    })
}

impl Front {
    pub fn new(requests: mpsc::Sender<Request>) -> Self {
        Self {
            requests,
            user: String::new(),
            protocol: None,
            channel: None,
            opened: Opened::NotYet,
        }
    }

    fn accept(&mut self, user: &str) -> Auth {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@+".contains(&byte);
        let good = (1..=64).contains(&user.len()) && user.bytes().all(plain);
        if !good {
            return Auth::reject();
        }
        self.user = user.to_owned();
        Auth::Accept
    }
}

impl Handler for Front {
    type Error = russh::Error;

    async fn auth_none(&mut self, user: &str) -> Result<Auth, Self::Error> {
        Ok(self.accept(user))
    }

    async fn auth_publickey_offered(
        &mut self,
        _user: &str,
        _offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(Auth::Accept)
    }

    async fn auth_publickey(
        &mut self,
        user: &str,
        _key: VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(self.accept(user))
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.opened == Opened::Once {
            reply.reject(ChannelOpenFailure::ResourceShortage).await;
            return Ok(());
        }
        self.opened = Opened::Once;
        self.channel = Some(channel);
        reply.accept().await;
        Ok(())
    }

    async fn env_request(
        &mut self,
        channel: ChannelId,
        name: &str,
        value: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if name == "GIT_PROTOCOL" && is_protocol(value) {
            self.protocol = Some(value.to_owned());
            return session.channel_success(channel);
        }
        session.channel_failure(channel)
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        line: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        let Some(own) = self.channel.take_if(|own| own.id() == channel) else {
            return session.channel_failure(channel);
        };
        session.channel_success(channel)?;
        let request = Request {
            user: self.user.clone(),
            protocol: self.protocol.take(),
            line: line.to_vec(),
            channel: own,
        };
        self.requests
            .send(request)
            .await
            .map_err(|_| russh::Error::Disconnect)
    }

    async fn shell_request(
        &mut self,
        channel: ChannelId,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn subsystem_request(
        &mut self,
        channel: ChannelId,
        _name: &str,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn pty_request(
        &mut self,
        channel: ChannelId,
        _terminal: &str,
        _columns: u32,
        _rows: u32,
        _width: u32,
        _height: u32,
        _modes: &[(Pty, u32)],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }

    async fn x11_request(
        &mut self,
        channel: ChannelId,
        _single: bool,
        _protocol: &str,
        _cookie: &str,
        _screen: u32,
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        session.channel_failure(channel)
    }
}
