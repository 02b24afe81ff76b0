//! Counters for Prometheus, on a unix socket of this machine.
//!
//! Who may read them is said by the socket's mode, 0600. Names and rules are
//! not among them: those are in the log.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::context::Context;

/// For a scraper to say what it wants and to take it.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);
/// Of the request, which is not looked at.
const REQUEST_BYTES_MAX: usize = 8 * 1024;

/// Opens the socket. To be done before the process is confined.
pub fn bind(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Answers scrapes, one after the other: a slow one keeps only others waiting.
pub async fn serve(context: Rc<Context>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((scraper, _)) => {
                let answered = answer(&context, scraper);
                let _late = tokio::time::timeout(SCRAPE_TIMEOUT, answered)
                    .await
                    .is_err();
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn answer(context: &Context, mut scraper: UnixStream) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        if request.len() > REQUEST_BYTES_MAX || scraper.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let body = text(context);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    scraper.write_all(head.as_bytes()).await?;
    scraper.write_all(body.as_bytes()).await
}

fn text(context: &Context) -> String {
    let totals = context.audit.totals();
    let counters = [
        (
            "connections_total",
            "Connections that were permitted.",
            totals.connections,
        ),
        (
            "allowed_total",
            "Decisions that permitted.",
            context.audit.permitted(),
        ),
        ("denied_total", "Decisions that denied.", totals.denied),
        (
            "uploaded_bytes_total",
            "Bytes that went out.",
            totals.uploaded_bytes,
        ),
        (
            "downloaded_bytes_total",
            "Bytes that came in.",
            totals.downloaded_bytes,
        ),
        (
            "events_lost_total",
            "Events that were not written down.",
            totals.events_lost,
        ),
    ];
    let gauges = [
        (
            "connections_open",
            "Connections at this moment.",
            context.open.get(),
        ),
        (
            "rules_generation",
            "How often the rules were replaced, from 1.",
            context.generation(),
        ),
    ];
    let line = |kind: &str, (name, help, value): (&str, &str, u64)| {
        format!(
            "# HELP stockade_egress_{name} {help}\n# TYPE stockade_egress_{name} {kind}\n\
             stockade_egress_{name} {value}\n"
        )
    };
    let counters = counters.into_iter().map(|one| line("counter", one));
    let gauges = gauges.into_iter().map(|one| line("gauge", one));
    counters.chain(gauges).collect()
}
