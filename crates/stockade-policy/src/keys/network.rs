//! The keys of the network half: `[network]`, its tables, `[[socket]]` and
//! `[approval]`.

use super::{DURATION, Grammar, HOST, Key, NOT_EMPTY, SIZE, Text};
use crate::document::List;
use crate::problem::Fault;
use crate::value;
use crate::written::{WrittenGit, WrittenRule, WrittenSocket};

const PORTS: &str = r"^[0-9]{1,5}(-[0-9]{1,5})?$";
const PUBLISHED: &str = r"^([0-9]{1,5}:)?[0-9]{1,5}$";
const METHOD: &str = r"^[A-Z0-9!#$%&'*+.^_`|~-]+$";
const REFERENCE: &str = r"^refs/.+$";

pub(super) static KEYS: &[Key] = &[
    Key {
        path: "network.allow",
        grammar: Grammar::List(Text::Pattern(HOST)),
        about: "Hosts that may be reached: \"host\", \"*.host\" (one label) or \"**.host\" (any \
                number, never the host itself), each with an optional port. Without a port 443 and \
                80 are meant: TLS passes through and is held to the host's name, plain HTTP is \
                judged request by request. Any other port that is named carries any protocol \
                (ssh, databases). An empty or absent list denies all.",
        example: r#"allow = ["docs.example.com", "*.cdn.example.com:443", "db.example.com:5432"]"#,
        read: |document, reader, input| document.network_allow = reader.list(input, value::host),
    },
    Key {
        path: "network.deny",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Hosts and networks that are never reached, whatever else is allowed: patterns as in \
                `allow`, and networks such as \"203.0.113.0/24\". Without a port every port is meant.",
        example: r#"deny = ["**.tracker.example", "203.0.113.0/24"]"#,
        read: |document, reader, input| document.network.deny = reader.list(input, value::denied),
    },
    Key {
        path: "network.publish",
        grammar: Grammar::List(Text::Pattern(PUBLISHED)),
        about: "Ports of servers inside that can be reached on this machine's 127.0.0.1: \"3000\", \
                \"8080:3000\" for another port of the machine, \"0:3000\" for any free one.",
        example: r#"publish = ["3000", "8080:80"]"#,
        read: |document, reader, input| {
            document.network.publish = reader.list_of_numbers(input, value::published)
        },
    },
    Key {
        path: "network.host_ports",
        grammar: Grammar::Numbers(r"^[0-9]{1,5}$"),
        about: "Ports of this machine's 127.0.0.1 that can be reached on the same port inside.",
        example: "host_ports = [5432]",
        read: |document, reader, input| {
            document.network.host_ports = reader.list_of_numbers(input, value::port)
        },
    },
    Key {
        path: "network.resolvers",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Addresses of the resolvers to ask, outside, for allowed names. Without it those of \
                this machine.",
        example: r#"resolvers = ["10.0.0.53"]"#,
        read: |document, reader, input| {
            document.network.resolvers = reader.list(input, value::resolver)
        },
    },
    Key {
        path: "network.roots",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Files (PEM) with more certificates that servers may rest on, beside those of this \
                machine.",
        example: r#"roots = ["/etc/ssl/corp.pem"]"#,
        read: |document, reader, input| document.network.roots = reader.list(input, value::path),
    },
    Key {
        path: "network.proxy",
        grammar: Grammar::Text(Text::Pattern(r"^http://.+:[0-9]{1,5}/?$")),
        about: "HTTP proxy of your organisation through which everything is dialled. It is told the \
                address that was checked, not the name.",
        example: r#"proxy = "http://proxy.corp.example:3128""#,
        read: |document, reader, input| document.network.proxy = reader.text(input, value::proxy),
    },
    Key {
        path: "network.proxy_resolves",
        grammar: Grammar::Boolean,
        about: "Let that proxy resolve names. Addresses are then not checked, which weakens NT4.",
        example: "proxy_resolves = true",
        read: |document, reader, input| document.network.proxy_resolves = reader.boolean(input),
    },
    Key {
        path: "network.nat64",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Prefixes into which your network translates IPv4 addresses (RFC 6052), beside \
                64:ff9b::/96.",
        example: r#"nat64 = ["2001:db8:64::/96"]"#,
        read: |document, reader, input| document.network.nat64 = reader.list(input, value::nat64),
    },
    Key {
        path: "network.connections",
        grammar: Grammar::Count,
        about: "Connections at one time, of the whole sandbox.",
        example: "connections = 256",
        read: |document, reader, input| document.network.budget.connections = reader.count(input),
    },
    Key {
        path: "network.upload_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Bytes that may be sent, of the whole sandbox.",
        example: r#"upload_bytes_max = "1GiB""#,
        read: |document, reader, input| {
            document.network.budget.upload_bytes_max = reader.text(input, value::size)
        },
    },
    Key {
        path: "network.download_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Bytes that may be received, of the whole sandbox.",
        example: r#"download_bytes_max = "10GiB""#,
        read: |document, reader, input| {
            document.network.budget.download_bytes_max = reader.text(input, value::size)
        },
    },
    Key {
        path: "network.requests_per_minute",
        grammar: Grammar::Count,
        about: "Requests and new connections a minute, of the whole sandbox.",
        example: "requests_per_minute = 600",
        read: |document, reader, input| {
            document.network.budget.requests_per_minute = reader.count(input)
        },
    },
    Key {
        path: "network.metrics",
        grammar: Grammar::Boolean,
        about: "Serve counters (Prometheus) on the unix socket metrics-RUN.sock of the state directory, outside.",
        example: "metrics = true",
        read: |document, reader, input| document.network.metrics = reader.boolean(input),
    },
    Key {
        path: "network.rule",
        grammar: Grammar::Tables(&RULE),
        about: "What may be done at a host, or hosts by address. Of the rules that hold a host and \
                port the most specific ones count, and of those the ones that demand something; a \
                request needs one that permits it. Demands on requests need TLS to be inspected.",
        example: "[[network.rule]]\nhost = \"api.example.com\"\nmethods = [\"GET\"]\npaths = [\"/repos/acme/**\"]",
        read: |document, reader, input| {
            document.network.rules = reader.tables(input, RULE, check_rule)
        },
    },
    Key {
        path: "network.git",
        grammar: Grammar::Tables(&GIT),
        about: "What may be done with git repositories of a host, read from git's own protocol. \
                Repositories that may be pushed to may be read.",
        example: "[[network.git]]\nhost = \"git.example.com\"\nread = [\"acme/**\"]\npush = [\"acme/site\"]\nrefs = [\"refs/heads/agent/*\"]",
        read: |document, reader, input| document.network.git = reader.tables(input, GIT, check_git),
    },
    Key {
        path: "socket",
        grammar: Grammar::Tables(&SOCKET),
        about: "Unix sockets of this machine that are offered inside, one by one.",
        example: "[[socket]]\nssh_agent = [\"SHA256:…\"]",
        read: |document, reader, input| {
            document.network.sockets = reader.tables(input, SOCKET, check_socket)
        },
    },
    Key {
        path: "approval.network",
        grammar: Grammar::Text(Text::Words(&["ask", "deny"])),
        about: "What happens with a host that no rule names: you are asked, or it is denied with a \
                message that says what would allow it. \"deny\" in any file forbids asking.",
        example: r#"network = "ask""#,
        read: |document, reader, input| {
            document.network.approval = reader.text(input, value::approval)
        },
    },
    Key {
        path: "approval.guarded",
        grammar: Grammar::Text(Text::Words(&["ask", "deny"])),
        about: "What happens with what a command writes to a guarded path: it is held until you approve \
                it, or the call fails. \"deny\" in any file forbids holding.",
        example: r#"guarded = "ask""#,
        read: |document, reader, input| document.guarded_ask = reader.text(input, value::approval),
    },
    Key {
        path: "approval.wait",
        grammar: Grammar::Text(Text::Pattern(DURATION)),
        about: "How long a request is held while you are asked, at most 60s.",
        example: r#"wait = "60s""#,
        read: |document, reader, input| {
            document.network.approval_wait_ms = reader.text(input, value::approval_wait)
        },
    },
];

static RULE: &[Key<WrittenRule>] = &[
    Key {
        path: "network.rule.host",
        grammar: Grammar::Text(Text::Pattern(HOST)),
        about: "The host, a pattern as in `allow` without a port.",
        example: r#"host = "api.example.com""#,
        read: |rule, reader, input| rule.host = reader.text(input, value::host_alone),
    },
    Key {
        path: "network.rule.cidr",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Instead of a host: addresses that are reached as such. The only way to allow one.",
        example: r#"cidr = "192.0.2.0/24""#,
        read: |rule, reader, input| rule.cidr = reader.text(input, value::network),
    },
    Key {
        path: "network.rule.ports",
        grammar: Grammar::Numbers(PORTS),
        about: "Ports and ranges; without them 443 and 80.",
        example: r#"ports = [443, "8000-8010"]"#,
        read: |rule, reader, input| rule.ports = reader.list_of_numbers(input, value::ports),
    },
    Key {
        path: "network.rule.tls",
        grammar: Grammar::Text(Text::Words(&["passthrough", "inspect", "raw"])),
        about: "\"passthrough\": TLS to the named host, unread. \"inspect\": TLS is ended here and \
                every request judged. \"raw\": any bytes. Without it \"inspect\" where something is \
                demanded of requests or a credential is bound, else \"passthrough\" on 443 and 80 \
                and \"raw\" on other ports.",
        example: r#"tls = "inspect""#,
        read: |rule, reader, input| rule.tls = reader.text(input, value::tls_mode),
    },
    Key {
        path: "network.rule.methods",
        grammar: Grammar::List(Text::Pattern(METHOD)),
        about: "Methods that requests may have.",
        example: r#"methods = ["GET", "HEAD"]"#,
        read: |rule, reader, input| rule.methods = reader.list(input, value::method),
    },
    Key {
        path: "network.rule.paths",
        grammar: Grammar::List(Text::Pattern(r"^(/|\*\*)")),
        about: "Paths that requests may have: `*` within a segment, `**` across.",
        example: r#"paths = ["/repos/acme/**"]"#,
        read: |rule, reader, input| rule.paths = reader.list(input, value::path_pattern),
    },
    Key {
        path: "network.rule.query",
        grammar: Grammar::Variables,
        about: "Parameters that the query must have, with a pattern of the value.",
        example: r#"query = { per_page = "*" }"#,
        read: |rule, reader, input| {
            rule.query = reader.pairs(input, value::parameter, value::value_pattern)
        },
    },
    Key {
        path: "network.rule.query_only",
        grammar: Grammar::Boolean,
        about: "No other parameter may be there.",
        example: "query_only = true",
        read: |rule, reader, input| rule.query_only = reader.boolean(input),
    },
    Key {
        path: "network.rule.headers",
        grammar: Grammar::Variables,
        about: "Headers that requests must have, with a pattern of the value.",
        example: r#"headers = { accept = "application/json" }"#,
        read: |rule, reader, input| {
            rule.headers = reader.pairs(input, value::header_name, value::value_pattern)
        },
    },
    Key {
        path: "network.rule.graphql",
        grammar: Grammar::Text(Text::Words(&["read-only"])),
        about: "Bodies must be GraphQL in which every operation is a query.",
        example: r#"graphql = "read-only""#,
        read: |rule, reader, input| rule.graphql = reader.text(input, value::graphql),
    },
    Key {
        path: "network.rule.body_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Largest body of a request.",
        example: r#"body_bytes_max = "1MiB""#,
        read: |rule, reader, input| rule.body_bytes_max = reader.text(input, value::size),
    },
    Key {
        path: "network.rule.upload_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Bytes that may be sent under this rule during a run.",
        example: r#"upload_bytes_max = "100MiB""#,
        read: |rule, reader, input| rule.budget.upload_bytes_max = reader.text(input, value::size),
    },
    Key {
        path: "network.rule.download_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Bytes that may be received under this rule during a run.",
        example: r#"download_bytes_max = "1GiB""#,
        read: |rule, reader, input| {
            rule.budget.download_bytes_max = reader.text(input, value::size)
        },
    },
    Key {
        path: "network.rule.connections",
        grammar: Grammar::Count,
        about: "Connections at one time under this rule.",
        example: "connections = 8",
        read: |rule, reader, input| rule.budget.connections = reader.count(input),
    },
    Key {
        path: "network.rule.requests_per_minute",
        grammar: Grammar::Count,
        about: "Requests a minute under this rule.",
        example: "requests_per_minute = 60",
        read: |rule, reader, input| rule.budget.requests_per_minute = reader.count(input),
    },
    Key {
        path: "network.rule.websocket",
        grammar: Grammar::Boolean,
        about: "Requests may become WebSockets, whose messages are not judged.",
        example: "websocket = true",
        read: |rule, reader, input| rule.websocket = reader.boolean(input),
    },
    Key {
        path: "network.rule.encoded_slash",
        grammar: Grammar::Boolean,
        about: "Keep `%2F` in paths, which is refused otherwise.",
        example: "encoded_slash = true",
        read: |rule, reader, input| rule.encoded_slash = reader.boolean(input),
    },
    Key {
        path: "network.rule.allow_private",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Private networks in which the host may be found.",
        example: r#"allow_private = ["10.0.0.0/8"]"#,
        read: |rule, reader, input| rule.allow_private = reader.list(input, value::network),
    },
    Key {
        path: "network.rule.no_alias",
        grammar: Grammar::Boolean,
        about: "Refuse the host when its name is an alias of a name outside the rule.",
        example: "no_alias = true",
        read: |rule, reader, input| rule.no_alias = reader.boolean(input),
    },
    Key {
        path: "network.rule.expires",
        grammar: Grammar::Moment,
        about: "Moment from which on the rule is as if it were not there.",
        example: r#"expires = "2030-12-31T00:00:00Z""#,
        read: |rule, reader, input| rule.expires = reader.text_or_date(input, value::expires),
    },
    Key {
        path: "network.rule.reason",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Why the rule is there; shown with every decision.",
        example: r#"reason = "the issue tracker""#,
        read: |rule, reader, input| rule.reason = reader.text(input, value::text),
    },
];

static GIT: &[Key<WrittenGit>] = &[
    Key {
        path: "network.git.host",
        grammar: Grammar::Text(Text::Pattern(HOST)),
        about: "The host, a pattern as in `allow` without a port. HTTPS is on port 443.",
        example: r#"host = "git.example.com""#,
        read: |git, reader, input| git.host = reader.text(input, value::host_alone),
    },
    Key {
        path: "network.git.read",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Repositories that may be cloned and fetched: `*` within a segment, `**` across.",
        example: r#"read = ["acme/**"]"#,
        read: |git, reader, input| git.read = reader.list(input, value::repository),
    },
    Key {
        path: "network.git.push",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Repositories that may be pushed to.",
        example: r#"push = ["acme/site"]"#,
        read: |git, reader, input| git.push = reader.list(input, value::repository),
    },
    Key {
        path: "network.git.refs",
        grammar: Grammar::List(Text::Pattern(REFERENCE)),
        about: "References that may be pushed, by their full names; without it every branch, and \
                nothing else.",
        example: r#"refs = ["refs/heads/agent/*"]"#,
        read: |git, reader, input| git.refs = reader.list(input, value::reference),
    },
    Key {
        path: "network.git.push_bytes_max",
        grammar: Grammar::Text(Text::Pattern(SIZE)),
        about: "Largest pack that may be pushed.",
        example: r#"push_bytes_max = "50MiB""#,
        read: |git, reader, input| git.push_bytes_max = reader.text(input, value::size),
    },
    Key {
        path: "network.git.delete",
        grammar: Grammar::Boolean,
        about: "References may be deleted.",
        example: "delete = true",
        read: |git, reader, input| git.delete = reader.boolean(input),
    },
    Key {
        path: "network.git.ssh_port",
        grammar: Grammar::Count,
        about: "Port on which the host speaks SSH, if git may also go that way.",
        example: "ssh_port = 22",
        read: |git, reader, input| git.ssh_port = reader.count(input),
    },
    Key {
        path: "network.git.allow_private",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Private networks in which the host may be found.",
        example: r#"allow_private = ["10.0.0.0/8"]"#,
        read: |git, reader, input| git.allow_private = reader.list(input, value::network),
    },
    Key {
        path: "network.git.expires",
        grammar: Grammar::Moment,
        about: "Moment from which on the rule is as if it were not there.",
        example: r#"expires = "2030-12-31T00:00:00Z""#,
        read: |git, reader, input| git.expires = reader.text_or_date(input, value::expires),
    },
    Key {
        path: "network.git.reason",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Why the rule is there; shown with every decision.",
        example: r#"reason = "our own repositories""#,
        read: |git, reader, input| git.reason = reader.text(input, value::text),
    },
];

static SOCKET: &[Key<WrittenSocket>] = &[
    Key {
        path: "socket.path",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "The socket: relative to the project, \"~/…\", or absolute. Bytes pass unchanged, \
                descriptors do not.",
        example: r#"path = "~/.cache/example.sock""#,
        read: |socket, reader, input| socket.path = reader.text(input, value::path),
    },
    Key {
        path: "socket.inside",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Where it is inside; without it below /run/stockade.",
        example: r#"inside = "/run/example.sock""#,
        read: |socket, reader, input| socket.inside = reader.text(input, value::path),
    },
    Key {
        path: "socket.ssh_agent",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Instead of a path: your ssh agent, which then signs only with these keys, named by \
                fingerprint or comment.",
        example: r#"ssh_agent = ["SHA256:…"]"#,
        read: |socket, reader, input| socket.ssh_agent = reader.list(input, value::text),
    },
];

fn check_rule(rule: &WrittenRule) -> Vec<Fault> {
    let mut faults = Vec::new();
    match (&rule.host, &rule.cidr) {
        (None, None) => faults.push(
            Fault::new("missing-key", "a rule needs a `host` or a `cidr`")
                .help("for example `host = \"api.example.com\"`"),
        ),
        (Some(_), Some(_)) => faults.push(
            Fault::new("contradiction", "a rule has a `host` or a `cidr`, not both")
                .help("write two rules"),
        ),
        _ => {}
    }
    for (key, list) in [("methods", &rule.methods), ("paths", &rule.paths)] {
        if list.as_ref().is_some_and(Vec::is_empty) {
            faults.push(
                Fault::new("empty-list", format!("`{key}` is empty"))
                    .help("leave it out to permit all of them"),
            );
        }
    }
    if let Some(ports) = &rule.ports
        && ports.is_empty()
    {
        faults.push(
            Fault::new(
                "empty-list",
                "`ports` is empty, so the rule permits nothing",
            )
            .help("leave it out for 443 and 80"),
        );
    }
    faults
}

fn check_git(git: &WrittenGit) -> Vec<Fault> {
    let mut faults = Vec::new();
    if git.host.is_none() {
        faults.push(
            Fault::new("missing-key", "a git rule needs a `host`")
                .help("for example `host = \"git.example.com\"`"),
        );
    }
    let empty = |list: &List<String>| list.as_ref().is_none_or(Vec::is_empty);
    if empty(&git.read) && empty(&git.push) {
        faults.push(
            Fault::new(
                "missing-key",
                "a git rule needs repositories in `read` or `push`",
            )
            .help("for example `read = [\"acme/**\"]`"),
        );
    }
    if let Some(port) = &git.ssh_port
        && u16::try_from(port.value).is_err()
    {
        faults.push(Fault::new("bad-port", "`ssh_port` is no port"));
    }
    faults
}

fn check_socket(socket: &WrittenSocket) -> Vec<Fault> {
    match (&socket.path, &socket.ssh_agent) {
        (None, None) => vec![
            Fault::new("missing-key", "a socket needs a `path` or an `ssh_agent`")
                .help("for example `path = \"~/x.sock\"`"),
        ],
        (Some(_), Some(_)) => vec![
            Fault::new(
                "contradiction",
                "a socket has a `path` or an `ssh_agent`, not both",
            )
            .help("write two tables"),
        ],
        (None, Some(keys)) if keys.is_empty() => vec![
            Fault::new(
                "empty-list",
                "`ssh_agent` names no key, so it could sign nothing",
            )
            .help("name keys by fingerprint (`ssh-add -l`) or comment"),
        ],
        _ => Vec::new(),
    }
}
