//! `stockade egress`: the process through which one sandbox reaches the
//! network. Not for people: its starter speaks to it over descriptor 3.

use crate::exit::ExitCode;

/// Number of the control socket, as `stockade_walls::egress` hands it over.
const CONTROL: i32 = 3;

/// Serves until the starter says otherwise or goes away.
pub fn run() -> ExitCode {
    // A peer that goes away while it is written to is an error of that one
    // connection, and not the end of all (signal(7), SIGPIPE).
    stockade_sys::signal::ignore(stockade_sys::signal::PIPE);
    match stockade_sys::process::inherited(CONTROL) {
        Ok(control) => {
            let code = stockade_egress::serve::serve(control);
            ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
        }
        Err(_) => {
            eprintln!("stockade: `stockade egress` is started by `stockade run`, not by hand");
            ExitCode::from(2)
        }
    }
}
