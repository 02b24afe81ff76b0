//! `stockade secret`: keeps secrets where policies can name them, and never
//! shows one.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::time::SystemTime;

use anyhow::{Context, bail};
use serde_json::json;
use stockade_egress::secret::SecretText;
use stockade_engine::secrets::SECRET_BYTES_MAX;
use stockade_engine::secrets::store::{Entry, Place, Store};
use stockade_engine::state::{Places, StateDirectory};
use stockade_policy::path::printable;
use stockade_sys::rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};

use crate::exit::ExitCode;
use crate::show;

/// Keep secrets for credentials, outside every sandbox
#[derive(Debug, clap::Args)]
#[command(
    long_about = "Keep secrets for credentials, outside every sandbox.\n\n\
        A policy names a stored secret by `from = { keyring = \"NAME\" }`; it is attached to requests \
        on their way out and never reaches the inside. Secrets are kept in the system keyring \
        (Secret Service), or in a file of mode 0600 where there is none.",
    after_long_help = "Examples:\n  \
        stockade secret set github               asks for the value, without showing it\n  \
        stockade secret set github < token.txt   takes it from a file or a pipe\n  \
        stockade secret list                     names, place and time, never values\n  \
        stockade secret remove github\n\n\
        Exit code: 0, or 1 when there was nothing to remove."
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Store a secret, in place of what had its name
    Set {
        /// 1 to 64 letters, digits, `.`, `_` and `-`
        name: String,
    },
    /// List what is stored: names, never values
    List {
        /// One JSON array
        #[arg(long)]
        json: bool,
    },
    /// Forget a secret
    Remove {
        /// As given to `set`
        name: String,
    },
}

pub fn run(arguments: &Args) -> anyhow::Result<ExitCode> {
    let store = Store::open(StateDirectory::open(&Places::of_caller()?)?);
    match &arguments.action {
        Action::Set { name } => set(&store, name),
        Action::List { json } => list(&store, if *json { Format::Json } else { Format::Text }),
        Action::Remove { name } => remove(&store, name),
    }
}

#[derive(Clone, Copy)]
enum Format {
    Text,
    Json,
}

fn set(store: &Store, name: &str) -> anyhow::Result<ExitCode> {
    let value = if io::stdin().is_terminal() {
        ask(name)?
    } else {
        piped()?
    };
    match store.set(name, &value, SystemTime::now())? {
        Place::Keyring => println!("Stored {name} in the system keyring."),
        Place::File => {
            println!("Stored {name} in {}.", store.file());
            show::line(
                "warning: no system keyring answers, so the secret is kept in a file that only you \
                 can read, unencrypted",
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(store: &Store, format: Format) -> anyhow::Result<ExitCode> {
    let entries = store.list()?;
    let mut output = io::stdout().lock();
    match format {
        Format::Json => {
            let entries: Vec<_> = entries.iter().map(as_json).collect();
            writeln!(output, "{}", serde_json::Value::from(entries))?;
        }
        Format::Text => {
            for entry in entries {
                let name = printable(entry.name.as_bytes());
                let stored = entry.stored.unwrap_or_else(|| "unknown".to_owned());
                writeln!(output, "{stored:24}  {:7}  {name}", place(entry.place))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn remove(store: &Store, name: &str) -> anyhow::Result<ExitCode> {
    if !store.remove(name)? {
        eprintln!(
            "No secret is stored under the name {}.",
            printable(name.as_bytes())
        );
        return Ok(ExitCode::FAILURE);
    }
    println!("Removed {name}.");
    Ok(ExitCode::SUCCESS)
}

fn as_json(entry: &Entry) -> serde_json::Value {
    json!({
        "name": entry.name,
        "place": place(entry.place),
        "stored": entry.stored,
    })
}

fn place(place: Place) -> &'static str {
    match place {
        Place::Keyring => "keyring",
        Place::File => "file",
    }
}

/// All of the standard input, without the last line's end.
fn piped() -> anyhow::Result<SecretText> {
    let mut text = String::new();
    io::stdin()
        .lock()
        .take(SECRET_BYTES_MAX as u64 + 2)
        .read_to_string(&mut text)
        .context("cannot read the secret from the standard input")?;
    let length = text.strip_suffix('\n').map_or(text.len(), str::len);
    text.truncate(length);
    let length = text.strip_suffix('\r').map_or(text.len(), str::len);
    text.truncate(length);
    Ok(SecretText::new(text))
}

/// Asks on the terminal, which shows nothing of what is typed or pasted.
fn ask(name: &str) -> anyhow::Result<SecretText> {
    let quiet = Quiet::new().context("cannot hide what is typed")?;
    write!(io::stderr(), "Secret for {}: ", printable(name.as_bytes()))?;
    io::stderr().flush()?;
    let line = typed(&mut io::stdin().lock());
    drop(quiet);
    writeln!(io::stderr())?;
    line
}

/// One line, with backspace; Ctrl-C gives up.
fn typed(input: &mut impl Read) -> anyhow::Result<SecretText> {
    let mut line = Vec::with_capacity(4096);
    loop {
        let mut byte = [0];
        if input.read(&mut byte)? == 0 {
            break;
        }
        match byte[0] {
            b'\r' | b'\n' | 0x04 => break,
            0x03 => bail!("nothing was stored"),
            0x08 | 0x7f => drop(line.pop()),
            other => line.push(other),
        }
        if line.len() > SECRET_BYTES_MAX {
            bail!("a secret has at most {SECRET_BYTES_MAX} bytes");
        }
    }
    let line = String::from_utf8(line).context("the secret is not UTF-8 text")?;
    Ok(SecretText::new(line))
}

/// The terminal without echo and without signals, until this is dropped: a
/// signal would end the program and leave the terminal mute.
struct Quiet {
    saved: Termios,
}

impl Quiet {
    fn new() -> anyhow::Result<Self> {
        let stdin = io::stdin();
        let saved = tcgetattr(stdin.as_fd())?;
        let mut modes = saved.clone();
        modes.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        modes.special_codes[SpecialCodeIndex::VMIN] = 1;
        modes.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(stdin.as_fd(), OptionalActions::Flush, &modes)?;
        Ok(Self { saved })
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let restored = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.saved);
        if restored.is_err() {
            show::line("stockade: the terminal may show nothing; type `reset`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_line_can_be_corrected_and_given_up() {
        let typed = |bytes: &[u8]| typed(&mut &*bytes).map(|text| text.reveal().to_owned());
        assert_eq!(typed(b"abx\x7fc\rrest").unwrap(), "abc");
        assert_eq!(typed(b"abc").unwrap(), "abc");
        assert!(typed(b"ab\x03c\r").is_err());
    }
}
