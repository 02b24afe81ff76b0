//! The promises that Stockade makes, each with the id under which it appears
//! in plans, events, tests and the conformance table.

use std::fmt;

macro_rules! guarantees {
    ($($id:ident: $promise:literal,)*) => {
        /// One promise of the product.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Guarantee { $($id,)* }

        impl Guarantee {
            /// Every guarantee, in the order of the design.
            pub const ALL: &[Guarantee] = &[$(Guarantee::$id,)*];

            /// The stable id, for example `FS1`.
            pub fn id(self) -> &'static str {
                match self { $(Guarantee::$id => stringify!($id),)* }
            }

            /// What is promised, in one line.
            pub fn promise(self) -> &'static str {
                match self { $(Guarantee::$id => $promise,)* }
            }
        }
    };
}

guarantees! {
    FS1: "only granted paths can be read; everything else is absent",
    FS2: "only granted paths can be written",
    FS3: "credential stores are absent even when the directory around them is granted",
    FS4: "a guarded path never becomes active outside without approval",
    FS5: "the view cannot be changed from inside, and links made inside steer nothing outside",
    FS6: "writes have a byte and inode budget",
    PR1: "system calls outside the filter are refused on every ABI",
    PR2: "no capability and no new privilege is ever gained",
    PR3: "no process outside can be seen, signalled, traced or read",
    PR4: "nothing that ran inside outlives the sandbox",
    PR5: "no descriptor but 0, 1 and 2 and no environment variable but the listed ones enter",
    PR6: "the caller's terminal cannot be typed into, and standard descriptors cannot be re-opened with more rights",
    PR7: "memory, processes, CPU, wall time and open files are limited, and a limit that was hit is named",
    PR8: "kernel objects without a path are private",
    NT1: "nothing leaves except through the egress proxy",
    NT2: "only allowlisted host and port pairs are reachable; an empty list denies all",
    NT3: "no name is resolved outside except allowlisted ones",
    NT4: "loopback of the host, private ranges and metadata are refused after resolution",
    NT5: "over TLS the server name equals the destination",
    NT6: "method, path, git-operation, size and rate rules hold",
    CR1: "a secret is never inside the sandbox",
    CR2: "a secret is attached only to requests that its binding names",
    CR3: "a credential other than the bound one is refused on a host with a binding",
    EP1: "each run starts from a declared state; nothing persists but what the policy names",
    EP2: "restore gives back exactly the snapshot",
    AU1: "each decision is one event with the rule that spoke, in a hash-chained log",
    AU2: "if any guarantee of the plan lacks evidence, the command does not start",
}

impl Guarantee {
    /// Looks an id up, as written in a policy.
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|guarantee| guarantee.id() == id)
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.id())
    }
}
