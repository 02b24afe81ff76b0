//! The variables and the directory of the plan, where the agent does not have
//! them of its own: a machine is not told of them when it boots.

use std::os::unix::ffi::OsStrExt;

use stockade_agent::wire::{ExecSpec, encode_spec, strings};
use stockade_policy::plan::Plan;

/// What every command has unless its caller says otherwise.
#[derive(Debug)]
pub(super) struct Own {
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    directory: Vec<u8>,
}

impl Own {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            environment: plan.command.environment.clone(),
            directory: plan
                .command
                .directory
                .as_path()
                .as_os_str()
                .as_bytes()
                .to_vec(),
        }
    }

    /// Replaces and completes the plan's variables.
    pub(super) fn add(&mut self, variables: Vec<(Vec<u8>, Vec<u8>)>) {
        let is_new = |name: &[u8]| !variables.iter().any(|(other, _)| other == name);
        self.environment.retain(|(name, _)| is_new(name));
        self.environment.extend(variables);
    }

    /// A command as it is described to the agent; `None` when it is too long.
    pub(super) fn complete(&self, spec: &ExecSpec<'_>) -> Option<Vec<u8>> {
        let mut environment = Vec::new();
        for (name, value) in &self.environment {
            let is_same = |other: &[u8]| {
                other
                    .strip_prefix(&name[..])
                    .is_some_and(|rest| rest.first() == Some(&b'='))
            };
            if !strings(spec.environment).any(is_same) {
                environment.extend_from_slice(name);
                environment.push(b'=');
                environment.extend_from_slice(value);
                environment.push(0);
            }
        }
        environment.extend_from_slice(spec.environment);
        let directory = match spec.directory {
            b"" => &self.directory,
            directory => directory,
        };
        encode_spec(&ExecSpec {
            environment: &environment,
            directory,
            ..*spec
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stockade_agent::wire::decode;

    #[test]
    fn what_a_caller_says_goes_before_what_the_plan_says() {
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        let mut own = Own {
            environment: vec![pair(b"A", b"1"), pair(b"AB", b"0")],
            directory: b"/project".to_vec(),
        };
        own.add(vec![pair(b"AB", b"2")]);
        let spec = ExecSpec {
            arguments: b"true\0",
            environment: b"A=3\0",
            directory: b"",
            user: None,
            terminal: None,
            input: false,
            merged: false,
        };
        let bytes = own.complete(&spec).unwrap();
        let complete: ExecSpec<'_> = decode(&bytes).unwrap();
        assert_eq!(complete.environment, b"AB=2\0A=3\0");
        assert_eq!(complete.directory, b"/project");
        let elsewhere = ExecSpec {
            directory: b"/tmp",
            ..spec
        };
        let bytes = own.complete(&elsewhere).unwrap();
        assert_eq!(decode::<ExecSpec<'_>>(&bytes).unwrap().directory, b"/tmp");
    }
}
