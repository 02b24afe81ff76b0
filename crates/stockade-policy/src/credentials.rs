//! Where credentials lie: places that stay absent even when a directory around
//! them is granted (FS3).
//!
//! The list is data, one place and one reason a line; it is a constant, so
//! nothing is parsed when the product starts. Paths are those of Linux and of
//! macOS, because a home directory is often shared between both.

use crate::path::AbsolutePath;

/// What a pattern is relative to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The caller's home directory.
    Home,
    /// The root directory.
    System,
}

/// What kind of secret lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CredentialKind {
    Ssh,
    Gnupg,
    Cloud,
    Container,
    PackageManager,
    Git,
    Browser,
    Keyring,
    History,
    PasswordManager,
    Agent,
    Database,
    Network,
    Communication,
    Wallet,
    System,
}

/// One place where credentials lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Stable and unique, for example `ssh`.
    pub id: &'static str,
    pub base: Base,
    /// Relative to the base, without a leading slash; `*` stands for any bytes
    /// within one component.
    pub pattern: &'static str,
    literal: bool,
    pub kind: CredentialKind,
    pub reason: &'static str,
}

impl Credential {
    /// Whether the pattern names exactly one path.
    pub fn is_literal(&self) -> bool {
        self.literal
    }

    /// Whether the path, relative to the base, is the place or lies below it.
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        let pattern = self.pattern.as_bytes();
        if self.is_literal() {
            return path.starts_with(pattern)
                && matches!(path.get(pattern.len()), None | Some(b'/'));
        }
        let mut given = path.split(|&byte| byte == b'/');
        pattern.split(|&byte| byte == b'/').all(|wanted| {
            given
                .next()
                .is_some_and(|name| component_matches(wanted, name))
        })
    }
}

/// Every known place, in the order of the list.
pub fn all() -> &'static [Credential] {
    CREDENTIALS
}

/// The place that the path is, or lies below.
pub fn covers(path: &AbsolutePath, home: &AbsolutePath) -> Option<&'static Credential> {
    let below_home = path.relative_to(home);
    let below_root = path.relative_to(&AbsolutePath::root());
    CREDENTIALS.iter().find(|credential| {
        let relative = match credential.base {
            Base::Home => below_home,
            Base::System => below_root,
        };
        relative.is_some_and(|path| credential.matches(path))
    })
}

const fn contains_star(pattern: &[u8]) -> bool {
    let mut at = 0;
    while at < pattern.len() {
        if pattern[at] == b'*' {
            return true;
        }
        at += 1;
    }
    false
}

/// Whether a name matches one component of a pattern, in which `*` stands for
/// any bytes and everything else for itself.
pub fn component_matches(pattern: &[u8], name: &[u8]) -> bool {
    let Some(star) = pattern.iter().position(|&byte| byte == b'*') else {
        return pattern == name;
    };
    let (head, tail) = (&pattern[..star], &pattern[star + 1..]);
    let Some(rest) = name.strip_prefix(head) else {
        return false;
    };
    (0..=rest.len()).any(|skipped| component_matches(tail, &rest[skipped..]))
}

macro_rules! credentials {
    ($($kind:ident $base:ident $id:literal $pattern:literal $reason:literal)*) => {
        &[$(Credential {
            id: $id,
            base: Base::$base,
            pattern: $pattern,
            literal: !contains_star($pattern.as_bytes()),
            kind: CredentialKind::$kind,
            reason: $reason,
        },)*]
    };
}

/// Kind, base, id, place, reason.
static CREDENTIALS: &[Credential] = credentials! {
    Ssh Home "ssh" ".ssh" "private keys, and the hosts on which they work"
    Ssh Home "putty" ".putty" "PuTTY sessions and private keys"
    Ssh Home "dropbear" ".dropbear" "Dropbear private keys"
    Ssh Home "tsh" ".tsh" "Teleport certificates and keys"
    Ssh Home "age" ".config/age" "age identities, which decrypt files"
    Ssh Home "sops" ".config/sops" "keys that decrypt the secrets of repositories"
    Ssh Home "sops-macos" "Library/Application Support/sops" "keys that decrypt the secrets of repositories (macOS)"
    Ssh Home "shosts" ".shosts" "hosts that may log in without a key"
    Ssh Home "rhosts" ".rhosts" "hosts that may log in without a password"

    Gnupg Home "gnupg" ".gnupg" "OpenPGP private keys and the agent's socket"
    Gnupg Home "sequoia" ".local/share/sequoia" "OpenPGP private keys of Sequoia"
    Gnupg Home "pki" ".pki" "NSS databases with client certificates"
    Gnupg Home "minisign" ".minisign" "minisign signing keys"
    Gnupg Home "sigstore" ".sigstore" "cached signing identities"

    Cloud Home "aws" ".aws" "AWS access keys and single-sign-on tokens"
    Cloud Home "aws-vault" ".awsvault" "AWS credentials kept by aws-vault"
    Cloud Home "saml2aws" ".saml2aws" "identity provider login of saml2aws"
    Cloud Home "boto" ".boto" "cloud storage keys of boto and gsutil"
    Cloud Home "s3cfg" ".s3cfg" "object storage keys of s3cmd"
    Cloud Home "passwd-s3fs" ".passwd-s3fs" "object storage keys of s3fs"
    Cloud Home "minio" ".mc" "object storage keys of the MinIO client"
    Cloud Home "minio-old" ".mcli" "object storage keys of the MinIO client"
    Cloud Home "gcloud" ".config/gcloud" "Google Cloud tokens and service-account keys"
    Cloud Home "gsutil" ".gsutil" "Google Cloud storage credentials"
    Cloud Home "azure" ".azure" "Azure tokens and service principals"
    Cloud Home "azure-dev" ".azd" "Azure developer tool tokens"
    Cloud Home "oci" ".oci" "Oracle Cloud API keys"
    Cloud Home "doctl" ".config/doctl" "DigitalOcean access token"
    Cloud Home "doctl-macos" "Library/Application Support/doctl" "DigitalOcean access token (macOS)"
    Cloud Home "hcloud" ".config/hcloud" "Hetzner Cloud tokens"
    Cloud Home "fly" ".fly" "Fly.io access token"
    Cloud Home "heroku" ".local/share/heroku" "Heroku login state"
    Cloud Home "heroku-old" ".heroku" "Heroku login state"
    Cloud Home "vercel" ".local/share/com.vercel.cli" "Vercel token"
    Cloud Home "vercel-config" ".config/vercel" "Vercel token"
    Cloud Home "vercel-old" ".vercel" "Vercel token"
    Cloud Home "now" ".now" "Vercel token under its former name"
    Cloud Home "vercel-macos" "Library/Application Support/com.vercel.cli" "Vercel token (macOS)"
    Cloud Home "netlify" ".config/netlify" "Netlify token"
    Cloud Home "netlify-old" ".netlify" "Netlify token"
    Cloud Home "netlify-macos" "Library/Preferences/netlify" "Netlify token (macOS)"
    Cloud Home "wrangler" ".wrangler" "Cloudflare token"
    Cloud Home "wrangler-config" ".config/.wrangler" "Cloudflare token"
    Cloud Home "wrangler-macos" "Library/Preferences/.wrangler" "Cloudflare token (macOS)"
    Cloud Home "cloudflared" ".cloudflared" "Cloudflare tunnel certificates"
    Cloud Home "railway" ".railway" "Railway token"
    Cloud Home "render" ".render" "Render token"
    Cloud Home "supabase" ".supabase" "Supabase access token"
    Cloud Home "firebase" ".config/configstore" "tokens of Firebase and other Node tools"
    Cloud Home "turso" ".config/turso" "Turso token"
    Cloud Home "planetscale" ".config/planetscale" "PlanetScale token"
    Cloud Home "neon" ".config/neonctl" "Neon credentials"
    Cloud Home "linode" ".config/linode-cli" "Linode token"
    Cloud Home "vultr" ".vultr-cli.yaml" "Vultr API key"
    Cloud Home "scaleway" ".config/scw" "Scaleway keys"
    Cloud Home "exoscale" ".config/exoscale" "Exoscale keys"
    Cloud Home "civo" ".civo.json" "Civo API key"
    Cloud Home "ovh" ".ovh.conf" "OVH application keys"
    Cloud Home "aliyun" ".aliyun" "Alibaba Cloud keys"
    Cloud Home "tencent" ".tccli" "Tencent Cloud keys"
    Cloud Home "ibmcloud" ".bluemix" "IBM Cloud token"
    Cloud Home "openstack" ".config/openstack" "OpenStack clouds.yaml with passwords"
    Cloud Home "cloudfoundry" ".cf" "Cloud Foundry token"
    Cloud Home "rclone" ".config/rclone" "tokens of every storage that rclone knows"
    Cloud Home "rclone-old" ".rclone.conf" "tokens of every storage that rclone knows"
    Cloud Home "restic" ".config/restic" "backup repository passwords"
    Cloud Home "borg" ".config/borg" "backup keys"
    Cloud Home "terraform" ".terraform.d" "Terraform Cloud tokens"
    Cloud Home "terraformrc" ".terraformrc" "Terraform registry tokens"
    Cloud Home "tofurc" ".tofurc" "OpenTofu registry tokens"
    Cloud Home "pulumi" ".pulumi" "Pulumi token and local state"
    Cloud Home "vault" ".vault-token" "HashiCorp Vault token"
    Cloud Home "consul" ".consul-token" "Consul token"
    Cloud Home "nomad" ".nomad-token" "Nomad token"
    Cloud Home "boundary" ".boundary" "Boundary session tokens"
    Cloud Home "ansible-vault" ".vault_pass" "Ansible vault password"
    Cloud Home "ansible-vault-txt" ".vault_pass.txt" "Ansible vault password"
    Cloud Home "ansible-galaxy" ".ansible/galaxy_token" "Ansible Galaxy token"
    Cloud Home "chef" ".chef" "Chef client keys"
    Cloud Home "doppler" ".doppler" "Doppler service tokens"
    Cloud Home "infisical" ".infisical" "Infisical login"
    Cloud Home "ngrok" ".ngrok2" "ngrok token"
    Cloud Home "ngrok-config" ".config/ngrok" "ngrok token"
    Cloud Home "ngrok-macos" "Library/Application Support/ngrok" "ngrok token (macOS)"
    Cloud Home "stripe" ".config/stripe" "Stripe API keys"
    Cloud Home "twilio" ".twilio-cli" "Twilio API keys"
    Cloud Home "sentry" ".sentryclirc" "Sentry token"
    Cloud Home "datadog" ".dogrc" "Datadog keys"
    Cloud Home "circleci" ".circleci" "CircleCI token"
    Cloud Home "travis" ".travis" "Travis CI token"
    Cloud Home "snyk" ".config/snyk" "Snyk token"
    Cloud Home "kaggle" ".kaggle" "Kaggle API key"
    Cloud Home "kaggle-config" ".config/kaggle" "Kaggle API key"
    Cloud Home "huggingface" ".huggingface" "Hugging Face token"
    Cloud Home "huggingface-token" ".cache/huggingface/token" "Hugging Face token"
    Cloud Home "huggingface-tokens" ".cache/huggingface/stored_tokens" "Hugging Face tokens"
    Cloud Home "wandb" ".config/wandb" "Weights & Biases settings with a key"
    Cloud Home "modal" ".modal.toml" "Modal token"
    Cloud Home "runpod" ".runpod" "RunPod API key"
    Cloud Home "databricks" ".databrickscfg" "Databricks token"
    Cloud Home "databricks-tokens" ".databricks" "Databricks token cache"
    Cloud Home "snowflake" ".snowflake" "Snowflake connections"
    Cloud Home "snowsql" ".snowsql" "Snowflake connections"
    Cloud Home "dbt" ".dbt" "warehouse passwords of dbt"
    Cloud Home "bigquery" ".bigqueryrc" "BigQuery credentials"

    Container Home "kube" ".kube" "Kubernetes cluster credentials"
    Container Home "docker" ".docker" "registry logins, contexts and TLS keys"
    Container Home "dockercfg" ".dockercfg" "registry logins in the old form"
    Container Home "containers" ".config/containers/auth.json" "registry logins of podman, buildah and skopeo"
    Container Home "podman-connections" ".config/containers/podman-connections.json" "remote machines and their keys"
    Container Home "podman-machine" ".local/share/containers/podman/machine" "private keys of podman's machines"
    Container Home "helm" ".config/helm" "Helm repository and registry logins"
    Container Home "helm-macos" "Library/Preferences/helm" "Helm repository and registry logins (macOS)"
    Container Home "k3d" ".config/k3d" "cluster credentials"
    Container Home "kind" ".config/kind" "cluster credentials"
    Container Home "minikube" ".minikube" "cluster certificates and keys"
    Container Home "colima" ".colima" "virtual machine keys and the docker socket"
    Container Home "lima" ".lima" "virtual machine keys and sockets"
    Container Home "vagrant" ".vagrant.d" "Vagrant keys and login"
    Container Home "openshift" ".config/openshift" "OpenShift tokens"
    Container Home "argocd" ".config/argocd" "Argo CD token"
    Container Home "argocd-old" ".argocd" "Argo CD token"
    Container Home "rancher" ".rancher" "Rancher tokens"
    Container Home "talos" ".talos" "Talos machine keys"
    Container Home "apptainer" ".apptainer" "registry logins and signing keys"
    Container Home "singularity" ".singularity" "registry logins and signing keys"

    PackageManager Home "npmrc" ".npmrc" "npm registry tokens"
    PackageManager Home "npmrc-config" ".config/npm/npmrc" "npm registry tokens"
    PackageManager Home "pnpm-rc" ".config/pnpm/rc" "pnpm registry tokens"
    PackageManager Home "pnpm-rc-macos" "Library/Preferences/pnpm/rc" "pnpm registry tokens (macOS)"
    PackageManager Home "yarnrc" ".yarnrc" "yarn registry tokens"
    PackageManager Home "yarnrc-yml" ".yarnrc.yml" "yarn registry tokens"
    PackageManager Home "bunfig" ".bunfig.toml" "bun registry tokens"
    PackageManager Home "jsr" ".config/jsr" "JSR token"
    PackageManager Home "pypirc" ".pypirc" "PyPI upload tokens"
    PackageManager Home "pip-config" ".config/pip" "index addresses with passwords"
    PackageManager Home "pip-old" ".pip" "index addresses with passwords"
    PackageManager Home "pip-macos" "Library/Application Support/pip" "index addresses with passwords (macOS)"
    PackageManager Home "pydistutils" ".pydistutils.cfg" "index addresses with passwords"
    PackageManager Home "poetry" ".config/pypoetry" "repository passwords of Poetry"
    PackageManager Home "poetry-macos" "Library/Application Support/pypoetry" "repository passwords of Poetry (macOS)"
    PackageManager Home "uv-credentials" ".local/share/uv/credentials" "index passwords of uv"
    PackageManager Home "hatch" ".config/hatch" "index passwords of Hatch"
    PackageManager Home "hatch-share" ".local/share/hatch/config.toml" "index passwords of Hatch"
    PackageManager Home "condarc" ".condarc" "channel addresses with tokens"
    PackageManager Home "anaconda" ".config/binstar" "Anaconda tokens"
    PackageManager Home "anaconda-keyring" ".anaconda/keyring" "Anaconda tokens"
    PackageManager Home "cargo" ".cargo/credentials.toml" "crates.io tokens"
    PackageManager Home "cargo-old" ".cargo/credentials" "crates.io tokens in the old form"
    PackageManager Home "gem" ".gem/credentials" "RubyGems API keys"
    PackageManager Home "gem-share" ".local/share/gem/credentials" "RubyGems API keys"
    PackageManager Home "gem-config" ".config/gem/credentials" "RubyGems API keys"
    PackageManager Home "bundle" ".bundle/config" "gem server passwords"
    PackageManager Home "composer" ".composer/auth.json" "Composer repository tokens"
    PackageManager Home "composer-config" ".config/composer/auth.json" "Composer repository tokens"
    PackageManager Home "nuget" ".nuget/NuGet" "NuGet feed passwords"
    PackageManager Home "nuget-config" ".config/NuGet" "NuGet feed passwords"
    PackageManager Home "maven" ".m2/settings.xml" "Maven server passwords"
    PackageManager Home "maven-master" ".m2/settings-security.xml" "key that decrypts Maven passwords"
    PackageManager Home "gradle" ".gradle/gradle.properties" "repository and signing passwords"
    PackageManager Home "gradle-init" ".gradle/init.d" "init scripts, which often hold repository passwords"
    PackageManager Home "ivy" ".ivy2/.credentials" "Ivy and sbt repository passwords"
    PackageManager Home "sbt" ".sbt/.credentials" "sbt repository passwords"
    PackageManager Home "sbt-credentials" ".sbt/credentials" "sbt repository passwords"
    PackageManager Home "coursier" ".config/coursier" "Coursier credentials"
    PackageManager Home "hex" ".hex" "Hex.pm keys"
    PackageManager Home "hex-config" ".config/hex" "Hex.pm keys"
    PackageManager Home "pub" ".pub-cache/credentials.json" "pub.dev token in the old place"
    PackageManager Home "dart" ".config/dart" "pub.dev tokens"
    PackageManager Home "cabal" ".cabal/config" "Hackage password"
    PackageManager Home "stack" ".stack/upload" "Hackage upload credentials"
    PackageManager Home "luarocks" ".luarocks/upload_config.lua" "LuaRocks API key"
    PackageManager Home "opam" ".opam/.credentials" "opam publishing token"
    PackageManager Home "cpan" ".pause" "PAUSE password"
    PackageManager Home "cocoapods" ".cocoapods" "CocoaPods session"
    PackageManager Home "swiftpm" ".swiftpm/security" "Swift registry certificates"
    PackageManager Home "conan" ".conan/.conan.db" "Conan remote tokens"
    PackageManager Home "conan2" ".conan2/credentials.json" "Conan remote tokens"
    PackageManager Home "julia" ".julia/servers" "Julia package server tokens"
    PackageManager Home "nix-netrc" ".config/nix" "access tokens of nix.conf"
    PackageManager Home "cachix" ".config/cachix" "Cachix tokens and signing keys"
    PackageManager Home "netrc" ".netrc" "passwords by host, which curl, git and pip use"
    PackageManager Home "netrc-underscore" "_netrc" "passwords by host"
    PackageManager Home "authinfo" ".authinfo" "passwords by host, of Emacs"
    PackageManager Home "authinfo-gpg" ".authinfo.gpg" "passwords by host, of Emacs"
    PackageManager Home "wgetrc" ".wgetrc" "proxy and site passwords"
    PackageManager Home "curlrc" ".curlrc" "proxy and site passwords"
    PackageManager Home "config-curlrc" ".config/curlrc" "proxy and site passwords"

    Git Home "git-credentials" ".git-credentials" "git passwords in the clear"
    Git Home "git-credentials-config" ".config/git/credentials" "git passwords in the clear"
    Git Home "git-credential-cache" ".git-credential-cache" "socket that answers with passwords"
    Git Home "git-credential-cache-xdg" ".cache/git/credential" "socket that answers with passwords"
    Git Home "git-credential-manager" ".gcm" "stored credentials of git-credential-manager"
    Git Home "gh" ".config/gh" "GitHub token"
    Git Home "glab" ".config/glab-cli" "GitLab token"
    Git Home "hub" ".config/hub" "GitHub token"
    Git Home "tea" ".config/tea" "Gitea token"
    Git Home "jira" ".config/.jira" "Jira token"
    Git Home "gitea-tea-old" ".tea" "Gitea token"
    Git Home "lazygit-hosts" ".config/lab" "GitLab token of lab"
    Git Home "subversion" ".subversion/auth" "Subversion passwords"
    Git Home "mercurial" ".hgrc" "Mercurial passwords"
    Git Home "bazaar" ".bazaar/authentication.conf" "Bazaar passwords"
    Git Home "gerrit" ".gitcookies" "Gerrit login cookies"
    Git Home "arcanist" ".arcrc" "Phabricator tokens"
    Git Home "reviewboard" ".rbtools-cookies" "Review Board session"

    Browser Home "chrome" ".config/google-chrome" "Chrome's cookies and passwords"
    Browser Home "chrome-beta" ".config/google-chrome-beta" "Chrome's cookies and passwords"
    Browser Home "chrome-unstable" ".config/google-chrome-unstable" "Chrome's cookies and passwords"
    Browser Home "chrome-testing" ".config/google-chrome-for-testing" "Chrome's cookies and passwords"
    Browser Home "chrome-flatpak" ".var/app/com.google.Chrome" "Chrome's cookies and passwords (flatpak)"
    Browser Home "chrome-macos" "Library/Application Support/Google" "Chrome's cookies and passwords (macOS)"
    Browser Home "chromium" ".config/chromium" "Chromium's cookies and passwords"
    Browser Home "chromium-snap" "snap/chromium" "Chromium's cookies and passwords (snap)"
    Browser Home "chromium-flatpak" ".var/app/org.chromium.Chromium" "Chromium's cookies and passwords (flatpak)"
    Browser Home "chromium-ungoogled-flatpak" ".var/app/io.github.ungoogled_software.ungoogled_chromium" "Chromium's cookies and passwords (flatpak)"
    Browser Home "chromium-macos" "Library/Application Support/Chromium" "Chromium's cookies and passwords (macOS)"
    Browser Home "brave" ".config/BraveSoftware" "Brave's cookies and passwords"
    Browser Home "brave-snap" "snap/brave" "Brave's cookies and passwords (snap)"
    Browser Home "brave-flatpak" ".var/app/com.brave.Browser" "Brave's cookies and passwords (flatpak)"
    Browser Home "brave-macos" "Library/Application Support/BraveSoftware" "Brave's cookies and passwords (macOS)"
    Browser Home "edge" ".config/microsoft-edge" "Edge's cookies and passwords"
    Browser Home "edge-beta" ".config/microsoft-edge-beta" "Edge's cookies and passwords"
    Browser Home "edge-dev" ".config/microsoft-edge-dev" "Edge's cookies and passwords"
    Browser Home "edge-flatpak" ".var/app/com.microsoft.Edge" "Edge's cookies and passwords (flatpak)"
    Browser Home "edge-macos" "Library/Application Support/Microsoft Edge" "Edge's cookies and passwords (macOS)"
    Browser Home "vivaldi" ".config/vivaldi" "Vivaldi's cookies and passwords"
    Browser Home "vivaldi-snapshot" ".config/vivaldi-snapshot" "Vivaldi's cookies and passwords"
    Browser Home "vivaldi-flatpak" ".var/app/com.vivaldi.Vivaldi" "Vivaldi's cookies and passwords (flatpak)"
    Browser Home "vivaldi-macos" "Library/Application Support/Vivaldi" "Vivaldi's cookies and passwords (macOS)"
    Browser Home "opera" ".config/opera" "Opera's cookies and passwords"
    Browser Home "opera-beta" ".config/opera-beta" "Opera's cookies and passwords"
    Browser Home "opera-snap" "snap/opera" "Opera's cookies and passwords (snap)"
    Browser Home "opera-flatpak" ".var/app/com.opera.Opera" "Opera's cookies and passwords (flatpak)"
    Browser Home "opera-macos" "Library/Application Support/com.operasoftware.Opera" "Opera's cookies and passwords (macOS)"
    Browser Home "opera-gx-macos" "Library/Application Support/com.operasoftware.OperaGX" "Opera's cookies and passwords (macOS)"
    Browser Home "yandex" ".config/yandex-browser" "Yandex Browser's cookies and passwords"
    Browser Home "arc-macos" "Library/Application Support/Arc" "Arc's cookies and passwords (macOS)"
    Browser Home "firefox" ".mozilla" "Firefox's cookies and passwords"
    Browser Home "firefox-config" ".config/mozilla" "Firefox's cookies and passwords"
    Browser Home "firefox-snap" "snap/firefox" "Firefox's cookies and passwords (snap)"
    Browser Home "firefox-flatpak" ".var/app/org.mozilla.firefox" "Firefox's cookies and passwords (flatpak)"
    Browser Home "firefox-macos" "Library/Application Support/Firefox" "Firefox's cookies and passwords (macOS)"
    Browser Home "librewolf" ".librewolf" "LibreWolf's cookies and passwords"
    Browser Home "librewolf-flatpak" ".var/app/io.gitlab.librewolf-community" "LibreWolf's cookies and passwords (flatpak)"
    Browser Home "librewolf-macos" "Library/Application Support/librewolf" "LibreWolf's cookies and passwords (macOS)"
    Browser Home "waterfox" ".waterfox" "Waterfox's cookies and passwords"
    Browser Home "zen" ".zen" "Zen's cookies and passwords"
    Browser Home "zen-flatpak" ".var/app/app.zen_browser.zen" "Zen's cookies and passwords (flatpak)"
    Browser Home "zen-macos" "Library/Application Support/zen" "Zen's cookies and passwords (macOS)"
    Browser Home "floorp" ".floorp" "Floorp's cookies and passwords"
    Browser Home "tor-browser" ".local/share/torbrowser" "Tor Browser's profile"
    Browser Home "palemoon" ".moonchild productions" "Pale Moon's cookies and passwords"
    Browser Home "epiphany" ".local/share/epiphany" "GNOME Web's cookies and passwords"
    Browser Home "falkon" ".config/falkon" "Falkon's cookies and passwords"
    Browser Home "qutebrowser" ".local/share/qutebrowser" "qutebrowser's cookies"
    Browser Home "safari-macos" "Library/Safari" "Safari's history and state (macOS)"
    Browser Home "safari-container-macos" "Library/Containers/com.apple.Safari" "Safari's cookies (macOS)"
    Browser Home "cookies-macos" "Library/Cookies" "cookies of system applications (macOS)"
    Browser Home "lynx" ".lynx_cookies" "Lynx's cookies"
    Browser Home "w3m" ".w3m" "w3m's cookies and passwords"
    Browser Home "elinks" ".elinks" "ELinks' cookies and passwords"

    Keyring Home "gnome-keyring" ".local/share/keyrings" "GNOME keyring: passwords of the whole session"
    Keyring Home "gnome-keyring-old" ".gnome2/keyrings" "GNOME keyring in the old place"
    Keyring Home "kwallet" ".local/share/kwalletd" "KDE wallet: passwords of the whole session"
    Keyring Home "kwallet4" ".kde/share/apps/kwallet" "KDE wallet in the old place"
    Keyring Home "kwallet4-alternative" ".kde4/share/apps/kwallet" "KDE wallet in the old place"
    Keyring Home "keychains-macos" "Library/Keychains" "macOS keychains: passwords of the whole session"
    Keyring Home "python-keyring" ".local/share/python_keyring" "keyring of Python tools"
    Keyring Home "gnome-online-accounts" ".config/goa-1.0" "tokens of GNOME Online Accounts"
    Keyring Home "kde-accounts" ".config/libaccounts-glib" "tokens of online accounts"
    Keyring Home "accounts-macos" "Library/Accounts" "tokens of online accounts (macOS)"
    Keyring Home "yubico" ".yubico" "challenge-response secrets"
    Keyring Home "oath" ".config/Yubico" "two-factor keys and U2F mappings"
    Keyring Home "google-authenticator" ".google_authenticator" "two-factor secret"
    Keyring Home "tpm2-pkcs11" ".tpm2_pkcs11" "wrapped keys of the TPM token"
    Keyring Home "secret-tool" ".local/share/secrets" "secrets kept by command-line tools"

    History Home "history" ".*_history" "what was typed, often with passwords: bash, zsh, python, node, psql, mysql, sqlite and others"
    History Home "bash-sessions" ".bash_sessions" "saved bash sessions (macOS)"
    History Home "zsh-sessions" ".zsh_sessions" "saved zsh sessions (macOS)"
    History Home "histfile" ".histfile" "zsh history in the place that its set-up suggests"
    History Home "sh-history" ".history" "history of ksh, tcsh and others"
    History Home "zhistory" ".zhistory" "zsh history"
    History Home "zsh-state" ".local/state/zsh" "zsh history"
    History Home "bash-state" ".local/state/bash" "bash history"
    History Home "zdotdir-history" ".config/zsh/.zsh_history" "zsh history"
    History Home "zdotdir-zhistory" ".config/zsh/.zhistory" "zsh history"
    History Home "fish" ".local/share/fish" "fish history"
    History Home "nushell" ".config/nushell/history.txt" "nushell history"
    History Home "nushell-sqlite" ".config/nushell/history.sqlite3" "nushell history"
    History Home "powershell" ".local/share/powershell/PSReadLine" "PowerShell history"
    History Home "xonsh" ".local/share/xonsh" "xonsh history"
    History Home "elvish" ".local/state/elvish" "elvish history"
    History Home "atuin" ".local/share/atuin" "atuin's history database and its key"
    History Home "mcfly" ".local/share/mcfly" "mcfly's history database"
    History Home "hstr" ".hstr_favorites" "favourite commands"
    History Home "ipython" ".ipython/profile_default/history.sqlite" "IPython history"
    History Home "jupyter" ".local/share/jupyter/runtime" "tokens of running notebook servers"
    History Home "jupyter-secret" ".jupyter" "notebook server passwords and settings"
    History Home "r" ".Rhistory" "R history"
    History Home "irb" ".irb-history" "irb history in the old place"
    History Home "irb-share" ".local/share/irb" "irb history"
    History Home "pry" ".local/share/pry" "pry history"
    History Home "less" ".lesshst" "searches in less"
    History Home "less-state" ".local/state/lesshst" "searches in less"
    History Home "viminfo" ".viminfo" "vim's history and registers"
    History Home "nvim-shada" ".local/state/nvim/shada" "neovim's history and registers"
    History Home "nvim-shada-old" ".local/share/nvim/shada" "neovim's history and registers"
    History Home "vim-swap" ".vim/undo" "deleted text of edited files"
    History Home "wget-hsts" ".wget-hsts" "hosts that were visited"
    History Home "mongodb" ".mongodb" "mongosh history"
    History Home "dbshell" ".dbshell" "mongo history in the old place"
    History Home "lftp" ".local/share/lftp" "lftp history and bookmarks with passwords"
    History Home "lftp-old" ".lftp" "lftp bookmarks with passwords"
    History Home "gdb" ".gdb_history" "gdb history"
    History Home "calc" ".calc_history" "calculator history"
    History Home "erlang" ".cache/erlang-history" "Erlang shell history"
    History Home "usql" ".config/usql" "database addresses with passwords"
    History Home "pgcli" ".config/pgcli/history" "pgcli history"
    History Home "mycli" ".mycli-history" "mycli history"
    History Home "recent-files" ".local/share/recently-used.xbel" "files that were opened"
    History Home "clipboard-gpaste" ".local/share/gpaste" "clipboard history"
    History Home "clipboard-klipper" ".local/share/klipper" "clipboard history"
    History Home "clipboard-copyq" ".local/share/copyq" "clipboard history"
    History Home "clipboard-cliphist" ".cache/cliphist" "clipboard history"
    History Home "messages-xsession" ".xsession-errors" "output of session programs, with tokens at times"

    PasswordManager Home "pass" ".password-store" "pass: the password store"
    PasswordManager Home "gopass" ".local/share/gopass" "gopass stores"
    PasswordManager Home "gopass-config" ".config/gopass" "gopass settings and age keys"
    PasswordManager Home "onepassword" ".config/op" "1Password command line session"
    PasswordManager Home "onepassword-old" ".op" "1Password command line session"
    PasswordManager Home "onepassword-app" ".config/1Password" "1Password vault and agent"
    PasswordManager Home "onepassword-agent" ".1password" "1Password agent socket"
    PasswordManager Home "onepassword-macos" "Library/Group Containers/2BUA8C4S2C.com.1password" "1Password vault (macOS)"
    PasswordManager Home "bitwarden" ".config/Bitwarden" "Bitwarden vault"
    PasswordManager Home "bitwarden-cli" ".config/Bitwarden CLI" "Bitwarden command line vault"
    PasswordManager Home "bitwarden-snap" "snap/bitwarden" "Bitwarden vault (snap)"
    PasswordManager Home "bitwarden-flatpak" ".var/app/com.bitwarden.desktop" "Bitwarden vault (flatpak)"
    PasswordManager Home "bitwarden-macos" "Library/Application Support/Bitwarden" "Bitwarden vault (macOS)"
    PasswordManager Home "bitwarden-cli-macos" "Library/Application Support/Bitwarden CLI" "Bitwarden command line vault (macOS)"
    PasswordManager Home "rbw" ".local/share/rbw" "rbw vault"
    PasswordManager Home "rbw-cache" ".cache/rbw" "rbw vault"
    PasswordManager Home "keepassxc" ".config/keepassxc" "KeePassXC settings and recent databases"
    PasswordManager Home "keepassxc-cache" ".cache/keepassxc" "KeePassXC state"
    PasswordManager Home "keepassxc-flatpak" ".var/app/org.keepassxc.KeePassXC" "KeePassXC state (flatpak)"
    PasswordManager Home "keepass" ".config/KeePass" "KeePass settings and recent databases"
    PasswordManager Home "keepass-databases" "*.kdbx" "KeePass databases in the home"
    PasswordManager Home "lastpass" ".lpass" "LastPass command line session"
    PasswordManager Home "lastpass-share" ".local/share/lpass" "LastPass command line session"
    PasswordManager Home "dashlane" ".local/share/dashlane-cli" "Dashlane command line vault"
    PasswordManager Home "protonpass" ".config/Proton Pass" "Proton Pass vault"
    PasswordManager Home "enpass" ".config/sinew.in" "Enpass settings"
    PasswordManager Home "buttercup" ".config/Buttercup" "Buttercup vaults"
    PasswordManager Home "authy" ".config/Authy Desktop" "two-factor secrets"

    Agent Home "claude" ".claude/.credentials.json" "Claude Code login"
    Agent Home "claude-state" ".claude.json" "Claude Code account, keys and tool server settings"
    Agent Home "claude-history" ".claude/history.jsonl" "prompts typed into Claude Code"
    Agent Home "claude-desktop" ".config/Claude" "Claude desktop session and tool server keys"
    Agent Home "claude-desktop-macos" "Library/Application Support/Claude" "Claude desktop session and tool server keys (macOS)"
    Agent Home "anthropic" ".config/anthropic" "Anthropic API key"
    Agent Home "anthropic-old" ".anthropic" "Anthropic API key"
    Agent Home "codex" ".codex/auth.json" "Codex login"
    Agent Home "codex-history" ".codex/history.jsonl" "prompts typed into Codex"
    Agent Home "openai" ".config/openai" "OpenAI API key"
    Agent Home "openai-old" ".openai" "OpenAI API key"
    Agent Home "gemini" ".gemini/oauth_creds.json" "Gemini login"
    Agent Home "gemini-accounts" ".gemini/google_accounts.json" "Gemini accounts"
    Agent Home "gemini-tokens" ".gemini/mcp-oauth-tokens.json" "tokens of Gemini's tool servers"
    Agent Home "gemini-env" ".gemini/.env" "Gemini API key"
    Agent Home "qwen" ".qwen/oauth_creds.json" "Qwen Code login"
    Agent Home "copilot" ".config/github-copilot" "GitHub Copilot token"
    Agent Home "copilot-cli" ".copilot" "GitHub Copilot command line login"
    Agent Home "cursor" ".config/Cursor/User/globalStorage" "Cursor login"
    Agent Home "cursor-agent" ".config/cursor" "Cursor agent login"
    Agent Home "cursor-tools" ".cursor/mcp.json" "keys of Cursor's tool servers"
    Agent Home "cursor-macos" "Library/Application Support/Cursor" "Cursor login (macOS)"
    Agent Home "windsurf" ".config/Windsurf/User/globalStorage" "Windsurf login"
    Agent Home "codeium" ".codeium" "Codeium and Windsurf API key"
    Agent Home "aider" ".aider.conf.yml" "API keys of aider"
    Agent Home "aider-keys" ".aider" "aider's login and caches"
    Agent Home "continue" ".continue" "API keys of Continue"
    Agent Home "opencode" ".local/share/opencode/auth.json" "opencode login"
    Agent Home "opencode-tools" ".local/share/opencode/mcp-auth.json" "tokens of opencode's tool servers"
    Agent Home "goose" ".config/goose" "Goose's provider keys"
    Agent Home "amp" ".local/share/amp" "Amp login"
    Agent Home "amp-config" ".config/amp" "Amp settings with keys"
    Agent Home "crush" ".local/share/crush" "Crush's provider keys"
    Agent Home "crush-config" ".config/crush" "Crush's provider keys"
    Agent Home "cline" ".cline" "Cline's provider keys"
    Agent Home "roo" ".roo" "Roo Code settings with keys"
    Agent Home "kilocode" ".kilocode" "Kilo Code login"
    Agent Home "factory" ".factory" "Factory login"
    Agent Home "augment" ".augment" "Augment session"
    Agent Home "amazon-q" ".local/share/amazon-q" "Amazon Q login"
    Agent Home "kiro" ".kiro" "Kiro login and tool server keys"
    Agent Home "kiro-cli" ".local/share/kiro-cli" "Kiro command line login"
    Agent Home "cody" ".config/Cody-nodejs" "Sourcegraph Cody login"
    Agent Home "sourcegraph" ".sourcegraph" "Sourcegraph token"
    Agent Home "devin" ".devin" "Devin token"
    Agent Home "warp" ".local/state/warp-terminal" "Warp login"
    Agent Home "kimi" ".kimi" "Kimi login"
    Agent Home "grok" ".grok" "Grok API key"
    Agent Home "deepseek" ".deepseek" "DeepSeek API key"
    Agent Home "mistral" ".vibe" "Mistral Vibe API key"
    Agent Home "openhands" ".openhands" "OpenHands settings with keys"
    Agent Home "openhands-state" ".openhands-state" "OpenHands settings with keys"
    Agent Home "interpreter" ".config/open-interpreter" "Open Interpreter keys"
    Agent Home "llm" ".config/io.datasette.llm" "keys of the llm tool"
    Agent Home "llm-macos" "Library/Application Support/io.datasette.llm" "keys of the llm tool (macOS)"
    Agent Home "aichat" ".config/aichat" "keys of aichat"
    Agent Home "mods" ".config/mods" "keys of mods"
    Agent Home "sgpt" ".config/shell_gpt" "keys of shell_gpt"
    Agent Home "fabric" ".config/fabric" "keys of fabric"
    Agent Home "ollama" ".ollama/id_ed25519" "Ollama's private key"
    Agent Home "lmstudio" ".lmstudio/credentials" "LM Studio login"
    Agent Home "mcp-auth" ".mcp-auth" "tokens of remote tool servers"
    Agent Home "mcp" ".mcp.json" "keys of tool servers"
    Agent Home "vscode" ".config/Code/User/globalStorage" "Visual Studio Code logins and extension secrets"
    Agent Home "vscode-insiders" ".config/Code - Insiders/User/globalStorage" "Visual Studio Code logins and extension secrets"
    Agent Home "vscodium" ".config/VSCodium/User/globalStorage" "VSCodium logins and extension secrets"
    Agent Home "vscode-server" ".vscode-server/data/User/globalStorage" "logins and extension secrets of a remote editor"
    Agent Home "vscode-cli" ".vscode/cli" "Visual Studio Code tunnel token"
    Agent Home "vscode-macos" "Library/Application Support/Code/User/globalStorage" "Visual Studio Code logins and extension secrets (macOS)"
    Agent Home "zed" ".local/share/zed/db" "Zed's login and state"
    Agent Home "jetbrains" ".config/JetBrains" "JetBrains logins and their password database"
    Agent Home "jetbrains-macos" "Library/Application Support/JetBrains" "JetBrains logins and their password database (macOS)"
    Agent Home "google-ide" ".config/Google" "Android Studio logins"
    Agent Home "antigravity" ".config/Antigravity/User/globalStorage" "Antigravity login"
    Agent Home "stockade" ".local/state/stockade" "Stockade's own log and trust records"
    Agent Home "stockade-config" ".config/stockade" "Stockade's own policy, which only the user changes"

    Database Home "pgpass" ".pgpass" "PostgreSQL passwords"
    Database Home "pg-service" ".pg_service.conf" "PostgreSQL services with passwords"
    Database Home "postgresql" ".postgresql" "PostgreSQL client keys"
    Database Home "my-cnf" ".my.cnf" "MySQL passwords"
    Database Home "mylogin" ".mylogin.cnf" "MySQL passwords"
    Database Home "myclirc" ".myclirc" "MySQL addresses with passwords"
    Database Home "mongorc" ".mongorc.js" "MongoDB start-up file with passwords"
    Database Home "cqlsh" ".cassandra" "Cassandra credentials and history"
    Database Home "redisclirc" ".redisclirc" "Redis password"
    Database Home "dbeaver" ".local/share/DBeaverData" "database passwords of DBeaver"
    Database Home "pgadmin" ".pgadmin" "database passwords of pgAdmin"
    Database Home "odbc" ".odbc.ini" "data sources with passwords"
    Database Home "clickhouse" ".clickhouse-client" "ClickHouse password"
    Database Home "influx" ".influxdbv2" "InfluxDB tokens"

    Network Home "kerberos" ".krb5" "Kerberos tickets"
    Network Home "keytab" ".keytab" "Kerberos keys"
    Network Home "k5login" ".k5login" "principals that may log in"
    Network Home "smbcredentials" ".smbcredentials" "file server password"
    Network Home "nm-certificates" ".cert" "certificates and keys of networks"
    Network Home "vpn" ".config/openvpn" "VPN keys"
    Network Home "wireguard" ".config/wireguard" "VPN keys"
    Network Home "protonvpn" ".config/protonvpn" "VPN login"
    Network Home "mullvad" ".config/Mullvad VPN" "VPN account"
    Network Home "tailscale-macos" "Library/Group Containers/io.tailscale.ipn.macsys" "Tailscale keys (macOS)"
    Network Home "remmina" ".local/share/remmina" "remote desktop passwords"
    Network Home "remmina-config" ".config/remmina" "key of the remote desktop passwords"
    Network Home "vnc" ".vnc" "remote desktop password"
    Network Home "freerdp" ".config/freerdp" "remote desktop certificates"
    Network Home "filezilla" ".config/filezilla" "file server passwords"
    Network Home "filezilla-old" ".filezilla" "file server passwords"
    Network Home "ncftp" ".ncftp" "file server passwords"
    Network Home "davfs2" ".davfs2" "file server passwords"
    Network Home "xauthority" ".Xauthority" "cookie that opens the display, and with it the keyboard"
    Network Home "iceauthority" ".ICEauthority" "cookie of the session manager"
    Network Home "pulse-cookie" ".config/pulse/cookie" "cookie of the sound server"
    Network Home "pulse-cookie-old" ".pulse-cookie" "cookie of the sound server"
    Network Home "kdeconnect" ".config/kdeconnect" "keys of paired telephones"
    Network Home "syncthing" ".config/syncthing" "Syncthing keys"
    Network Home "syncthing-state" ".local/state/syncthing" "Syncthing keys"
    Network Home "transmission" ".config/transmission-daemon" "remote control password"
    Network Home "globus" ".globus" "grid certificates"

    Communication Home "thunderbird" ".thunderbird" "mail and its passwords"
    Communication Home "thunderbird-flatpak" ".var/app/org.mozilla.Thunderbird" "mail and its passwords (flatpak)"
    Communication Home "thunderbird-snap" "snap/thunderbird" "mail and its passwords (snap)"
    Communication Home "thunderbird-macos" "Library/Thunderbird" "mail and its passwords (macOS)"
    Communication Home "evolution" ".local/share/evolution" "mail and its accounts"
    Communication Home "evolution-config" ".config/evolution" "mail accounts"
    Communication Home "mail-macos" "Library/Mail" "mail (macOS)"
    Communication Home "messages-macos" "Library/Messages" "messages (macOS)"
    Communication Home "mutt" ".mutt" "mail passwords"
    Communication Home "mutt-config" ".config/mutt" "mail passwords"
    Communication Home "muttrc" ".muttrc" "mail passwords"
    Communication Home "neomutt" ".config/neomutt" "mail passwords"
    Communication Home "msmtp" ".msmtprc" "mail passwords"
    Communication Home "msmtp-config" ".config/msmtp" "mail passwords"
    Communication Home "mbsync" ".mbsyncrc" "mail passwords"
    Communication Home "offlineimap" ".offlineimaprc" "mail passwords"
    Communication Home "fetchmail" ".fetchmailrc" "mail passwords"
    Communication Home "getmail" ".getmail" "mail passwords"
    Communication Home "aerc" ".config/aerc" "mail passwords"
    Communication Home "himalaya" ".config/himalaya" "mail passwords"
    Communication Home "slack" ".config/Slack" "Slack session"
    Communication Home "slack-cli" ".slack" "Slack command line tokens"
    Communication Home "slack-macos" "Library/Application Support/Slack" "Slack session (macOS)"
    Communication Home "discord" ".config/discord" "Discord session"
    Communication Home "discord-macos" "Library/Application Support/discord" "Discord session (macOS)"
    Communication Home "signal" ".config/Signal" "Signal messages and keys"
    Communication Home "signal-macos" "Library/Application Support/Signal" "Signal messages and keys (macOS)"
    Communication Home "telegram" ".local/share/TelegramDesktop" "Telegram session"
    Communication Home "telegram-macos" "Library/Group Containers/6N38VWS5BX.ru.keepcoder.Telegram" "Telegram session (macOS)"
    Communication Home "element" ".config/Element" "Matrix session"
    Communication Home "teams" ".config/teams-for-linux" "Teams session"
    Communication Home "zoom" ".zoom" "Zoom session"
    Communication Home "weechat" ".weechat" "chat passwords and logs"
    Communication Home "weechat-config" ".config/weechat" "chat passwords"
    Communication Home "irssi" ".irssi" "chat passwords and logs"
    Communication Home "purple" ".purple" "chat passwords and logs"
    Communication Home "hexchat" ".config/hexchat" "chat passwords and logs"

    Wallet Home "bitcoin" ".bitcoin" "Bitcoin wallet"
    Wallet Home "bitcoin-macos" "Library/Application Support/Bitcoin" "Bitcoin wallet (macOS)"
    Wallet Home "ethereum" ".ethereum" "Ethereum keys"
    Wallet Home "ethereum-macos" "Library/Ethereum" "Ethereum keys (macOS)"
    Wallet Home "foundry" ".foundry/keystores" "Ethereum keys"
    Wallet Home "electrum" ".electrum" "Electrum wallet"
    Wallet Home "exodus" ".config/Exodus" "Exodus wallet"
    Wallet Home "ledger" ".config/Ledger Live" "Ledger accounts"
    Wallet Home "monero" ".bitmonero" "Monero wallet"
    Wallet Home "solana" ".config/solana" "Solana keys"
    Wallet Home "sui" ".sui" "Sui keys"
    Wallet Home "aptos" ".aptos" "Aptos keys"
    Wallet Home "near" ".near-credentials" "NEAR keys"

    System System "shadow" "etc/shadow" "password hashes of this machine"
    System System "shadow-backup" "etc/shadow-" "password hashes of this machine"
    System System "gshadow" "etc/gshadow" "password hashes of groups"
    System System "gshadow-backup" "etc/gshadow-" "password hashes of groups"
    System System "opasswd" "etc/security/opasswd" "former password hashes"
    System System "shadow-copies" "var/backups" "copies of the password files"
    System System "master-passwd" "etc/master.passwd" "password hashes of this machine (BSD, macOS)"
    System System "sudoers" "etc/sudoers" "who may become root, and how"
    System System "sudoers-directory" "etc/sudoers.d" "who may become root, and how"
    System System "doas" "etc/doas.conf" "who may become root, and how"
    System System "polkit-rules" "etc/polkit-1" "who may become root, and how"
    System System "ssh-host-keys" "etc/ssh/ssh_host_*_key" "private keys that prove this machine"
    System System "tls-private" "etc/ssl/private" "private keys of this machine's services"
    System System "tls-private-pki" "etc/pki/tls/private" "private keys of this machine's services"
    System System "pki-ca" "etc/pki/CA/private" "private key of a certificate authority"
    System System "pki-entitlement" "etc/pki/entitlement" "subscription keys"
    System System "letsencrypt" "etc/letsencrypt" "private keys and account of certificates"
    System System "acme" "etc/acme" "private keys and account of certificates"
    System System "network-manager" "etc/NetworkManager/system-connections" "network and VPN passwords"
    System System "netplan" "etc/netplan" "network passwords"
    System System "wpa-supplicant" "etc/wpa_supplicant" "network passwords"
    System System "iwd" "var/lib/iwd" "network passwords"
    System System "connman" "var/lib/connman" "network passwords"
    System System "bluetooth" "var/lib/bluetooth" "keys of paired devices"
    System System "wireguard-system" "etc/wireguard" "VPN private keys"
    System System "openvpn-system" "etc/openvpn" "VPN private keys"
    System System "ipsec-secrets" "etc/ipsec.secrets" "VPN keys"
    System System "ipsec" "etc/ipsec.d" "VPN keys"
    System System "swanctl" "etc/swanctl" "VPN keys"
    System System "ppp-chap" "etc/ppp/chap-secrets" "dial-up and VPN passwords"
    System System "ppp-pap" "etc/ppp/pap-secrets" "dial-up and VPN passwords"
    System System "tailscale" "var/lib/tailscale" "key of this machine in its private network"
    System System "zerotier" "var/lib/zerotier-one" "key of this machine in its private network"
    System System "krb5-keytab" "etc/krb5.keytab" "Kerberos keys of this machine"
    System System "krb5-kdc" "var/lib/krb5kdc" "Kerberos keys of the realm"
    System System "sssd" "etc/sssd" "directory service password"
    System System "sssd-cache" "var/lib/sss" "cached password hashes"
    System System "ldap-secret" "etc/ldap.secret" "directory service password"
    System System "pam-ldap-secret" "etc/pam_ldap.secret" "directory service password"
    System System "nslcd" "etc/nslcd.conf" "directory service password"
    System System "samba" "var/lib/samba/private" "domain secrets"
    System System "samba-credentials" "etc/samba/credentials" "file server password"
    System System "cifs-credentials" "etc/cifs-credentials" "file server password"
    System System "davfs2-system" "etc/davfs2/secrets" "file server passwords"
    System System "ceph" "etc/ceph" "storage cluster keys"
    System System "cryptsetup-keys" "etc/cryptsetup-keys.d" "keys of encrypted disks"
    System System "luks" "etc/luks" "keys of encrypted disks"
    System System "clevis" "var/db/tang" "keys that unlock encrypted disks"
    System System "systemd-credential-secret" "var/lib/systemd/credential.secret" "key of this machine's stored credentials"
    System System "systemd-random-seed" "var/lib/systemd/random-seed" "seed of the next boot's randomness"
    System System "credstore" "etc/credstore" "credentials of services"
    System System "credstore-encrypted" "etc/credstore.encrypted" "credentials of services"
    System System "run-credentials" "run/credentials" "credentials of running services"
    System System "run-secrets" "run/secrets" "secrets given to this container, service-account tokens among them"
    System System "var-run-secrets" "var/run/secrets" "secrets given to this container, service-account tokens among them"
    System System "kubernetes" "etc/kubernetes" "cluster keys"
    System System "kubelet" "var/lib/kubelet" "node keys and secrets of pods"
    System System "etcd" "var/lib/etcd" "all secrets of a cluster"
    System System "rancher-system" "etc/rancher" "cluster credentials"
    System System "rancher-state" "var/lib/rancher" "cluster keys and tokens"
    System System "k0s" "var/lib/k0s" "cluster keys and tokens"
    System System "microk8s" "var/snap/microk8s" "cluster keys and tokens"
    System System "docker-state" "var/lib/docker" "images, volumes and secrets of every container"
    System System "docker-key" "etc/docker/key.json" "key of this docker daemon"
    System System "docker-certificates" "etc/docker/certs.d" "registry client keys"
    System System "containerd-state" "var/lib/containerd" "images and secrets of every container"
    System System "containers-state" "var/lib/containers" "images and secrets of every container"
    System System "lxd" "var/lib/lxd" "containers and the key of their manager"
    System System "incus" "var/lib/incus" "containers and the key of their manager"
    System System "libvirt-secrets" "etc/libvirt/secrets" "virtual machine secrets"
    System System "cloud-init" "var/lib/cloud" "start-up data of this machine, often with tokens"
    System System "cloud-init-run" "run/cloud-init" "start-up data of this machine, often with tokens"
    System System "boto-system" "etc/boto.cfg" "cloud storage keys"
    System System "google-agent" "etc/google" "service-account keys"
    System System "waagent" "var/lib/waagent" "certificates of this Azure machine"
    System System "ssm-agent" "var/lib/amazon" "credentials of this AWS machine"
    System System "vault-system" "etc/vault.d" "Vault configuration with keys"
    System System "vault-data" "opt/vault" "Vault's keys and storage"
    System System "consul-system" "etc/consul.d" "Consul tokens and keys"
    System System "nomad-system" "etc/nomad.d" "Nomad tokens and keys"
    System System "puppet" "etc/puppetlabs/puppet/ssl" "key of this Puppet node"
    System System "chef-system" "etc/chef" "key of this Chef node"
    System System "salt" "etc/salt/pki" "key of this Salt node"
    System System "gitlab" "etc/gitlab" "secrets of a GitLab server"
    System System "gitlab-runner" "etc/gitlab-runner" "CI runner tokens"
    System System "gitea" "etc/gitea" "secrets of a Gitea server"
    System System "jenkins" "var/lib/jenkins" "CI server secrets"
    System System "grafana" "etc/grafana" "monitoring server secrets"
    System System "apt-auth" "etc/apt/auth.conf" "package mirror passwords"
    System System "apt-auth-directory" "etc/apt/auth.conf.d" "package mirror passwords"
    System System "mysql-debian" "etc/mysql/debian.cnf" "database administrator's password"
    System System "postgresql-data" "var/lib/postgresql" "databases and their password hashes"
    System System "mysql-data" "var/lib/mysql" "databases and their password hashes"
    System System "redis-config" "etc/redis" "database password"
    System System "mosquitto" "etc/mosquitto" "message broker passwords"
    System System "rabbitmq" "var/lib/rabbitmq" "message broker's cookie and passwords"
    System System "exim-passwords" "etc/exim4/passwd.client" "mail relay passwords"
    System System "postfix-sasl" "etc/postfix/sasl_passwd" "mail relay passwords"
    System System "postfix-sasl-db" "etc/postfix/sasl_passwd.db" "mail relay passwords"
    System System "sasldb" "etc/sasldb2" "mail passwords"
    System System "msmtp-system" "etc/msmtprc" "mail relay password"
    System System "ssmtp" "etc/ssmtp" "mail relay password"
    System System "dovecot-private" "etc/dovecot/private" "private keys of the mail server"
    System System "dkim" "etc/opendkim" "mail signing keys"
    System System "bind-keys" "etc/bind/rndc.key" "key that controls the name server"
    System System "unbound-keys" "etc/unbound/unbound_control.key" "key that controls the name server"
    System System "cups" "etc/cups/printers.conf" "printer passwords"
    System System "secureboot-keys" "var/lib/shim-signed/mok" "keys that sign kernel modules"
    System System "secureboot-db" "etc/secureboot" "keys that sign boot files"
    System System "dkms-key" "var/lib/dkms" "keys that sign kernel modules"
    System System "nix-secret-key" "etc/nix/secret-key-files" "package signing keys"
    System System "machine-key-macos" "Library/Keychains" "system keychain (macOS)"
    System System "keychain-private-macos" "private/var/db/SystemKey" "key of the system keychain (macOS)"
    System System "account-store-macos" "private/var/db/dslocal" "password hashes (macOS)"
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn path(text: &str) -> AbsolutePath {
        AbsolutePath::parse(text).unwrap()
    }

    fn covering(text: &str) -> Option<&'static str> {
        covers(&path(text), &path("/home/u")).map(|credential| credential.id)
    }

    #[test]
    fn ids_and_places_are_unique_and_well_formed() {
        let mut ids = BTreeSet::new();
        let mut places = BTreeSet::new();
        for credential in all() {
            assert!(ids.insert(credential.id), "id {}", credential.id);
            let base = credential.base == Base::Home;
            assert!(
                places.insert((base, credential.pattern)),
                "place {}",
                credential.pattern
            );
            let normal = path(&format!("/{}", credential.pattern));
            assert_eq!(&normal.as_bytes()[1..], credential.pattern.as_bytes());
            assert!(!credential.reason.is_empty() && !credential.reason.ends_with('.'));
        }
    }

    #[test]
    fn patterns_are_few_because_each_costs_a_directory_listing() {
        assert!(
            all()
                .iter()
                .filter(|credential| !credential.is_literal())
                .count()
                <= 5
        );
    }

    #[test]
    fn covers_the_place_and_what_lies_below_but_not_its_neighbours() {
        assert_eq!(covering("/home/u/.ssh"), Some("ssh"));
        assert_eq!(covering("/home/u/.ssh/id_ed25519"), Some("ssh"));
        assert_eq!(covering("/home/u/.sshx"), None);
        assert_eq!(covering("/home/u"), None);
        assert_eq!(covering("/home/other/.ssh"), None);
        assert_eq!(covering("/home/u/.cargo/credentials.toml"), Some("cargo"));
        assert_eq!(covering("/home/u/.cargo/bin/cargo"), None);
        assert_eq!(covering("/home/u/.python_history"), Some("history"));
        assert_eq!(
            covering("/etc/ssh/ssh_host_ed25519_key"),
            Some("ssh-host-keys")
        );
        assert_eq!(covering("/etc/ssh/ssh_host_ed25519_key.pub"), None);
        assert_eq!(covering("/etc/shadow"), Some("shadow"));
        assert_eq!(covering("/etc/passwd"), None);
    }

    #[test]
    fn every_kind_has_a_place() {
        let kinds: BTreeSet<_> = all().iter().map(|credential| credential.kind).collect();
        assert_eq!(kinds.len(), 16);
    }
}
