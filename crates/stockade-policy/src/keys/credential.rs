//! The keys of `[[credential]]`: what is attached, to which requests, and
//! where the secret comes from.

use super::{Grammar, HOST, Key, NOT_EMPTY, Text, VARIABLE};
use crate::document::List;
use crate::problem::Fault;
use crate::value;
use crate::written::{
    WrittenAwsSts, WrittenCredential, WrittenGitHubApp, WrittenOAuth2, WrittenPlace, WrittenSigV4,
    WrittenSource,
};

const NAME: &str = r"^[A-Za-z0-9._-]{1,64}$";
const HTTPS: &str = r"^https://.+$";

pub(super) static KEYS: &[Key] = &[Key {
    path: "credential",
    grammar: Grammar::Tables(&CREDENTIAL),
    about: "A secret that stays outside and is attached to requests on their way out. TLS to its \
            host is inspected, other credentials are refused there, and responses are scrubbed of \
            it.",
    example: "[[credential]]\nname = \"example\"\nhost = \"api.example.com\"\nfrom = { env = \"EXAMPLE_TOKEN\" }\nattach = { header = \"Authorization\", format = \"Bearer {}\" }",
    read: |document, reader, input| {
        document.network.credentials = reader.tables(input, CREDENTIAL, check_credential)
    },
}];

static CREDENTIAL: &[Key<WrittenCredential>] = &[
    Key {
        path: "credential.name",
        grammar: Grammar::Text(Text::Pattern(NAME)),
        about: "What it is called in events and messages.",
        example: r#"name = "example""#,
        read: |credential, reader, input| {
            credential.name = reader.text(input, value::credential_name)
        },
    },
    Key {
        path: "credential.host",
        grammar: Grammar::Text(Text::Pattern(HOST)),
        about: "The only host that gets it, a pattern as in `allow` without a port. It must be \
                allowed by a rule.",
        example: r#"host = "api.example.com""#,
        read: |credential, reader, input| credential.host = reader.text(input, value::host_alone),
    },
    Key {
        path: "credential.ports",
        grammar: Grammar::Numbers(r"^[0-9]{1,5}(-[0-9]{1,5})?$"),
        about: "Ports; without them 443.",
        example: "ports = [443]",
        read: |credential, reader, input| {
            credential.ports = reader.list_of_numbers(input, value::ports)
        },
    },
    Key {
        path: "credential.methods",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Methods of the requests that get it; without them all that the rules permit.",
        example: r#"methods = ["GET"]"#,
        read: |credential, reader, input| credential.methods = reader.list(input, value::method),
    },
    Key {
        path: "credential.paths",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Paths of the requests that get it; without them all that the rules permit.",
        example: r#"paths = ["/api/**"]"#,
        read: |credential, reader, input| {
            credential.paths = reader.list(input, value::path_pattern)
        },
    },
    Key {
        path: "credential.from",
        grammar: Grammar::Table(&SOURCE),
        about: "Where the secret comes from: exactly one source.",
        example: r#"from = { env = "EXAMPLE_TOKEN" }"#,
        read: |credential, reader, input| {
            credential.from = reader.table(input, SOURCE, check_source)
        },
    },
    Key {
        path: "credential.attach",
        grammar: Grammar::Table(&PLACE),
        about: "Programs send nothing; the secret is put into this place.",
        example: r#"attach = { header = "Authorization", format = "Bearer {}" }"#,
        read: |credential, reader, input| {
            credential.attach = reader.table(input, PLACE, check_attach)
        },
    },
    Key {
        path: "credential.replace",
        grammar: Grammar::Table(&PLACE),
        about: "Programs send a placeholder of the same shape in this place, which becomes the \
                secret.",
        example: r#"replace = { header = "Authorization", format = "Bearer {}" }"#,
        read: |credential, reader, input| {
            credential.replace = reader.table(input, PLACE, check_place)
        },
    },
    Key {
        path: "credential.variable",
        grammar: Grammar::Text(Text::Pattern(VARIABLE)),
        about: "Variable inside that holds the placeholder of `replace`.",
        example: r#"variable = "EXAMPLE_TOKEN""#,
        read: |credential, reader, input| credential.variable = reader.text(input, value::variable),
    },
    Key {
        path: "credential.scrub",
        grammar: Grammar::Boolean,
        about: "`false` leaves the secret in responses, which weakens CR1.",
        example: "scrub = true",
        read: |credential, reader, input| credential.scrub = reader.boolean(input),
    },
    Key {
        path: "credential.plaintext",
        grammar: Grammar::Boolean,
        about: "`true` attaches it over plain HTTP too (name the port), which weakens CR2.",
        example: "plaintext = false",
        read: |credential, reader, input| credential.plaintext = reader.boolean(input),
    },
    Key {
        path: "credential.expires",
        grammar: Grammar::Moment,
        about: "Moment from which on it is not attached any more.",
        example: r#"expires = "2030-12-31T00:00:00Z""#,
        read: |credential, reader, input| {
            credential.expires = reader.text_or_date(input, value::expires)
        },
    },
];

macro_rules! stored_sources {
    ($($more:expr),* $(,)?) => {
        &[
            Key {
                path: "credential.from.env",
                grammar: Grammar::Text(Text::Pattern(VARIABLE)),
                about: "A variable of yours.",
                example: r#"env = "EXAMPLE_TOKEN""#,
                read: |source, reader, input| source.env = reader.text(input, value::variable),
            },
            Key {
                path: "credential.from.file",
                grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
                about: "A file that only you can read.",
                example: r#"file = "~/.config/example/token""#,
                read: |source, reader, input| source.file = reader.text(input, value::path),
            },
            Key {
                path: "credential.from.command",
                grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
                about: "A command whose first line is the secret; run outside, without a shell.",
                example: r#"command = ["pass", "show", "example"]"#,
                read: |source, reader, input| source.command = reader.list(input, value::text),
            },
            Key {
                path: "credential.from.keyring",
                grammar: Grammar::Text(Text::Pattern(NAME)),
                about: "An entry that `stockade secret set` made.",
                example: r#"keyring = "example""#,
                read: |source, reader, input| {
                    source.keyring = reader.text(input, value::credential_name)
                },
            },
            $($more),*
        ]
    };
}

/// Sources that hold a secret; those that mint one rest on them.
static STORED: &[Key<WrittenSource>] = stored_sources![];

static SOURCE: &[Key<WrittenSource>] = stored_sources![
    Key {
        path: "credential.from.oauth2",
        grammar: Grammar::Table(&OAUTH2),
        about: "A token of an OAuth 2.0 server: client credentials, or a refresh token.",
        example: r#"oauth2 = { token_url = "https://id.example.com/token", client_id = "x", client_secret = { keyring = "x" } }"#,
        read: |source, reader, input| source.oauth2 =
            reader.table(input, OAUTH2, check_oauth2).map(Box::new),
    },
    Key {
        path: "credential.from.github_app",
        grammar: Grammar::Table(&GITHUB_APP),
        about: "An installation token of a GitHub App, narrowed to repositories and permissions.",
        example: r#"github_app = { app_id = "1", installation_id = "2", private_key = { file = "~/app.pem" }, repositories = ["site"] }"#,
        read: |source, reader, input| {
            source.github_app = reader
                .table(input, GITHUB_APP, check_github_app)
                .map(Box::new)
        },
    },
    Key {
        path: "credential.from.aws_sts",
        grammar: Grammar::Table(&AWS_STS),
        about: "Keys of an AWS role for a short time, narrowed by a session policy.",
        example: r#"aws_sts = { region = "eu-central-1", role = "arn:aws:iam::1:role/x", access_key_id = { env = "AWS_ACCESS_KEY_ID" }, secret_access_key = { env = "AWS_SECRET_ACCESS_KEY" } }"#,
        read: |source, reader, input| source.aws_sts =
            reader.table(input, AWS_STS, check_aws_sts).map(Box::new),
    },
];

static OAUTH2: &[Key<WrittenOAuth2>] = &[
    Key {
        path: "credential.from.oauth2.token_url",
        grammar: Grammar::Text(Text::Pattern(HTTPS)),
        about: "Where tokens are issued.",
        example: r#"token_url = "https://id.example.com/token""#,
        read: |oauth2, reader, input| oauth2.token_url = reader.text(input, value::https_url),
    },
    Key {
        path: "credential.from.oauth2.client_id",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "The client.",
        example: r#"client_id = "x""#,
        read: |oauth2, reader, input| oauth2.client_id = reader.text(input, value::text),
    },
    Key {
        path: "credential.from.oauth2.client_secret",
        grammar: Grammar::Table(&STORED),
        about: "Its secret.",
        example: r#"client_secret = { keyring = "x" }"#,
        read: |oauth2, reader, input| {
            oauth2.client_secret = reader.table(input, STORED, check_source)
        },
    },
    Key {
        path: "credential.from.oauth2.refresh_token",
        grammar: Grammar::Table(&STORED),
        about: "A refresh token, for that grant instead of client credentials.",
        example: r#"refresh_token = { keyring = "x-refresh" }"#,
        read: |oauth2, reader, input| {
            oauth2.refresh_token = reader.table(input, STORED, check_source)
        },
    },
    Key {
        path: "credential.from.oauth2.scopes",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Scopes to ask for; the fewer the better.",
        example: r#"scopes = ["read"]"#,
        read: |oauth2, reader, input| oauth2.scopes = reader.list(input, value::text),
    },
];

static GITHUB_APP: &[Key<WrittenGitHubApp>] = &[
    Key {
        path: "credential.from.github_app.api_url",
        grammar: Grammar::Text(Text::Pattern(HTTPS)),
        about: "The API, if it is not that of github.com.",
        example: r#"api_url = "https://api.github.com""#,
        read: |app, reader, input| app.api_url = reader.text(input, value::https_url),
    },
    Key {
        path: "credential.from.github_app.app_id",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Number of the app, or its client id.",
        example: r#"app_id = "1""#,
        read: |app, reader, input| app.app_id = reader.text(input, value::text),
    },
    Key {
        path: "credential.from.github_app.installation_id",
        grammar: Grammar::Text(Text::Pattern(r"^[0-9]+$")),
        about: "Number of the installation.",
        example: r#"installation_id = "2""#,
        read: |app, reader, input| app.installation_id = reader.text(input, value::text),
    },
    Key {
        path: "credential.from.github_app.private_key",
        grammar: Grammar::Table(&STORED),
        about: "Private key of the app (PEM).",
        example: r#"private_key = { file = "~/app.pem" }"#,
        read: |app, reader, input| app.private_key = reader.table(input, STORED, check_source),
    },
    Key {
        path: "credential.from.github_app.repositories",
        grammar: Grammar::List(Text::Pattern(NOT_EMPTY)),
        about: "Names of the repositories that the token is for.",
        example: r#"repositories = ["site"]"#,
        read: |app, reader, input| app.repositories = reader.list(input, value::text),
    },
    Key {
        path: "credential.from.github_app.permissions",
        grammar: Grammar::Variables,
        about: "Permissions of the token.",
        example: r#"permissions = { contents = "write" }"#,
        read: |app, reader, input| {
            app.permissions = reader.pairs(input, value::parameter, value::text)
        },
    },
];

static AWS_STS: &[Key<WrittenAwsSts>] = &[
    Key {
        path: "credential.from.aws_sts.endpoint",
        grammar: Grammar::Text(Text::Pattern(HTTPS)),
        about: "The service, if it is not that of the region.",
        example: r#"endpoint = "https://sts.eu-central-1.amazonaws.com""#,
        read: |sts, reader, input| sts.endpoint = reader.text(input, value::https_url),
    },
    Key {
        path: "credential.from.aws_sts.region",
        grammar: Grammar::Text(Text::Pattern(r"^[a-z0-9-]+$")),
        about: "The region.",
        example: r#"region = "eu-central-1""#,
        read: |sts, reader, input| sts.region = reader.text(input, value::credential_name),
    },
    Key {
        path: "credential.from.aws_sts.access_key_id",
        grammar: Grammar::Table(&STORED),
        about: "Id of your own key.",
        example: r#"access_key_id = { env = "AWS_ACCESS_KEY_ID" }"#,
        read: |sts, reader, input| sts.access_key_id = reader.table(input, STORED, check_source),
    },
    Key {
        path: "credential.from.aws_sts.secret_access_key",
        grammar: Grammar::Table(&STORED),
        about: "Your own key.",
        example: r#"secret_access_key = { env = "AWS_SECRET_ACCESS_KEY" }"#,
        read: |sts, reader, input| {
            sts.secret_access_key = reader.table(input, STORED, check_source)
        },
    },
    Key {
        path: "credential.from.aws_sts.role",
        grammar: Grammar::Text(Text::Pattern(r"^arn:.+$")),
        about: "The role to take.",
        example: r#"role = "arn:aws:iam::1:role/x""#,
        read: |sts, reader, input| sts.role = reader.text(input, value::text),
    },
    Key {
        path: "credential.from.aws_sts.policy",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Session policy (JSON) that narrows the role.",
        example: r#"policy = "{}""#,
        read: |sts, reader, input| sts.policy = reader.text(input, value::text),
    },
    Key {
        path: "credential.from.aws_sts.duration_seconds",
        grammar: Grammar::Count,
        about: "How long the keys live, from 900 to 43200 seconds; without it 900.",
        example: "duration_seconds = 900",
        read: |sts, reader, input| sts.duration_seconds = reader.count(input),
    },
];

static PLACE: &[Key<WrittenPlace>] = &[
    Key {
        path: "credential.attach.header",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "A header.",
        example: r#"header = "Authorization""#,
        read: |place, reader, input| place.header = reader.text(input, value::header),
    },
    Key {
        path: "credential.attach.format",
        grammar: Grammar::Text(Text::Pattern(r"^.*\{\}.*$")),
        about: "What stands around the secret in the header; without it nothing.",
        example: r#"format = "Bearer {}""#,
        read: |place, reader, input| place.format = reader.text(input, value::format),
    },
    Key {
        path: "credential.attach.basic",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "Basic authentication of this user, as git over HTTPS does.",
        example: r#"basic = "x-access-token""#,
        read: |place, reader, input| place.basic = reader.text(input, value::text),
    },
    Key {
        path: "credential.attach.query",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "A parameter of the query.",
        example: r#"query = "key""#,
        read: |place, reader, input| place.query = reader.text(input, value::parameter),
    },
    Key {
        path: "credential.attach.path",
        grammar: Grammar::Boolean,
        about: "Anywhere in the path (`replace` only).",
        example: "path = true",
        read: |place, reader, input| place.path = reader.boolean(input),
    },
    Key {
        path: "credential.attach.form",
        grammar: Grammar::Text(Text::Pattern(NOT_EMPTY)),
        about: "A field of a form in the body.",
        example: r#"form = "api_key""#,
        read: |place, reader, input| place.form = reader.text(input, value::parameter),
    },
    Key {
        path: "credential.attach.json",
        grammar: Grammar::Text(Text::Pattern(r"^/.*$")),
        about: "A member of a JSON body, by pointer (RFC 6901).",
        example: r#"json = "/auth/token""#,
        read: |place, reader, input| place.json = reader.text(input, value::json_pointer),
    },
    Key {
        path: "credential.attach.sigv4",
        grammar: Grammar::Table(&SIGV4),
        about: "The request is signed anew for AWS; region and service are taken from the host \
                where they are not given.",
        example: r#"sigv4 = { region = "eu-central-1", service = "s3" }"#,
        read: |place, reader, input| place.sigv4 = reader.table(input, SIGV4, |_| Vec::new()),
    },
];

static SIGV4: &[Key<WrittenSigV4>] = &[
    Key {
        path: "credential.attach.sigv4.region",
        grammar: Grammar::Text(Text::Pattern(r"^[a-z0-9-]+$")),
        about: "The region.",
        example: r#"region = "eu-central-1""#,
        read: |sigv4, reader, input| sigv4.region = reader.text(input, value::credential_name),
    },
    Key {
        path: "credential.attach.sigv4.service",
        grammar: Grammar::Text(Text::Pattern(r"^[a-z0-9-]+$")),
        about: "The service.",
        example: r#"service = "s3""#,
        read: |sigv4, reader, input| sigv4.service = reader.text(input, value::credential_name),
    },
];

fn check_credential(credential: &WrittenCredential) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (key, there) in [
        ("name", credential.name.is_some()),
        ("host", credential.host.is_some()),
        ("from", credential.from.is_some()),
    ] {
        faults.extend(missing(key, "a credential", there));
    }
    let attach = credential.attach.is_some();
    match (attach, &credential.replace, &credential.variable) {
        (true, Some(_), _) => faults.push(
            Fault::new("contradiction", "a credential has `attach` or `replace`, not both")
                .help("`attach` for programs that send nothing, `replace` for those that must send something"),
        ),
        (false, None, _) => faults.push(
            Fault::new("missing-key", "a credential needs `attach` or `replace`")
                .help("for example `attach = { header = \"Authorization\", format = \"Bearer {}\" }`"),
        ),
        (true, None, Some(_)) => faults.push(
            Fault::new("contradiction", "`variable` goes with `replace`; with `attach` there is no placeholder")
                .help("remove it, or write `replace`"),
        ),
        (false, Some(_), None) => faults.push(
            Fault::new("missing-key", "`replace` needs a `variable` that holds the placeholder")
                .help("for example `variable = \"EXAMPLE_TOKEN\"`"),
        ),
        _ => {}
    }
    faults
}

fn missing(key: &str, whose: &str, there: bool) -> Option<Fault> {
    (!there).then(|| Fault::new("missing-key", format!("{whose} needs `{key}`")))
}

fn check_source(source: &WrittenSource) -> Vec<Fault> {
    let said = [
        source.env.is_some(),
        source.file.is_some(),
        source.command.is_some(),
        source.keyring.is_some(),
        source.oauth2.is_some(),
        source.github_app.is_some(),
        source.aws_sts.is_some(),
    ];
    let mut faults = exactly_one(
        &said,
        "source",
        "for example `from = { keyring = \"example\" }`",
    );
    if source.command.as_ref().is_some_and(Vec::is_empty) {
        faults.push(Fault::new("empty-list", "`command` is empty"));
    }
    faults
}

fn check_attach(place: &WrittenPlace) -> Vec<Fault> {
    let mut faults = check_place(place);
    if place.path.is_some() {
        faults.push(
            Fault::new("contradiction", "a secret in the path needs `replace`")
                .help("programs then send the placeholder at its place in the path"),
        );
    }
    faults
}

fn check_place(place: &WrittenPlace) -> Vec<Fault> {
    let said = [
        place.header.is_some(),
        place.basic.is_some(),
        place.query.is_some(),
        place.path.as_ref().is_some_and(|path| path.value),
        place.form.is_some(),
        place.json.is_some(),
        place.sigv4.is_some(),
    ];
    let mut faults = exactly_one(
        &said,
        "place",
        "for example `{ header = \"Authorization\" }`",
    );
    if place.format.is_some() && place.header.is_none() {
        faults.push(Fault::new("contradiction", "`format` goes with `header`"));
    }
    faults
}

fn exactly_one(said: &[bool], what: &str, example: &str) -> Vec<Fault> {
    let message = match said.iter().filter(|said| **said).count() {
        1 => return Vec::new(),
        0 => format!("no {what} is named"),
        count => format!("{count} {what}s are named; it must be one"),
    };
    vec![Fault::new("contradiction", message).help(example)]
}

fn check_oauth2(oauth2: &WrittenOAuth2) -> Vec<Fault> {
    let whose = "`oauth2`";
    let mut faults = Vec::new();
    faults.extend(missing("token_url", whose, oauth2.token_url.is_some()));
    faults.extend(missing("client_id", whose, oauth2.client_id.is_some()));
    let secret = oauth2.client_secret.is_some() || oauth2.refresh_token.is_some();
    faults.extend(missing("client_secret", whose, secret));
    faults
}

fn check_github_app(app: &WrittenGitHubApp) -> Vec<Fault> {
    let whose = "`github_app`";
    let mut faults = Vec::new();
    faults.extend(missing("app_id", whose, app.app_id.is_some()));
    faults.extend(missing(
        "installation_id",
        whose,
        app.installation_id.is_some(),
    ));
    faults.extend(missing("private_key", whose, app.private_key.is_some()));
    let none = |list: &List<String>| list.as_ref().is_none_or(Vec::is_empty);
    if none(&app.repositories) {
        faults.push(
            Fault::new("missing-key", "`github_app` needs `repositories`")
                .help("a token for all repositories of an installation is never asked for"),
        );
    }
    faults
}

fn check_aws_sts(sts: &WrittenAwsSts) -> Vec<Fault> {
    let whose = "`aws_sts`";
    let mut faults = Vec::new();
    faults.extend(missing("region", whose, sts.region.is_some()));
    faults.extend(missing("role", whose, sts.role.is_some()));
    faults.extend(missing("access_key_id", whose, sts.access_key_id.is_some()));
    faults.extend(missing(
        "secret_access_key",
        whose,
        sts.secret_access_key.is_some(),
    ));
    let seconds = sts
        .duration_seconds
        .as_ref()
        .map_or(900, |seconds| seconds.value);
    if !(900..=43_200).contains(&seconds) {
        faults.push(Fault::new(
            "bad-duration",
            "`duration_seconds` is from 900 to 43200",
        ));
    }
    faults
}
