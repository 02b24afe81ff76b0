//! Programs as they are used inside: each accepts the sandbox's authority with
//! its name constraints, and nothing of another name.

use stockade_policy::network::rules::Content;

use super::support::{HOST, World, plan, run};
use crate::inspect::authority::Protocol::{Http1, Http2};

/// A file with the authority's certificate.
fn trusted(world: &World) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &world.pem).unwrap();
    file
}

/// A program that is missing here is used in the tests of whole runs.
fn check(name: &str, result: Option<(String, bool)>, expected: &str) {
    match result {
        None => eprintln!("skipped: {name} is not installed"),
        Some((printed, success)) => {
            assert!(success && printed.contains(expected), "{name}: {printed}");
        }
    }
}

#[test]
fn curl_speaks_both_protocols() {
    run(
        plan(Content::default()),
        &[Http2, Http1],
        |world| async move {
            let file = trusted(&world);
            let to = format!("{HOST}:443:{}", world.address);
            let path = file.path().to_str().unwrap();
            for (option, line) in [("--http2", "HTTP/2.0"), ("--http1.1", "HTTP/1.1")] {
                let url = "https://origin.test/curl";
                let arguments = ["-sS", "--cacert", path, "--connect-to", &to, option, url];
                check("curl", world.program("curl", &arguments).await, line);
            }
            let data = "x".repeat(200_000);
            // Longer than any argument may be (execve(2)).
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &data).unwrap();
            let body = format!("@{}", file.path().display());
            let arguments = [
                "-sS",
                "--cacert",
                path,
                "--connect-to",
                &to,
                "-d",
                &body,
                "https://origin.test/",
            ];
            check("curl", world.program("curl", &arguments).await, &data);
        },
    );
}

#[test]
fn openssl_python_and_node_trust_the_authority() {
    run(plan(Content::default()), &[Http1], |world| async move {
        let file = trusted(&world);
        let path = file.path().to_str().unwrap();
        let address = world.address.to_string();
        let arguments = [
            "s_client",
            "-connect",
            &address,
            "-servername",
            HOST,
            "-CAfile",
            path,
            "-verify_hostname",
            HOST,
            "-x509_strict",
            "-verify_return_error",
            "-brief",
        ];
        let result = world.program("openssl", &arguments).await;
        check("openssl", result, "Verification: OK");

        let port = world.address.port().to_string();
        let script = "import ssl, socket, sys, http.client\n\
            context = ssl.create_default_context(cafile=sys.argv[1])\n\
            context.verify_flags |= ssl.VERIFY_X509_STRICT\n\
            plain = socket.create_connection(('127.0.0.1', int(sys.argv[2])))\n\
            client = http.client.HTTPConnection('origin.test')\n\
            client.sock = context.wrap_socket(plain, server_hostname='origin.test')\n\
            client.request('GET', '/python')\n\
            print(client.getresponse().read().decode())\n";
        let result = world.program("python3", &["-c", script, path, &port]).await;
        check("python3", result, "GET /python HTTP/1.1");

        let script = "const [file, port] = process.argv.slice(1);\n\
            require('https').get({ host: '127.0.0.1', port, path: '/node', \
            servername: 'origin.test', headers: { host: 'origin.test' }, \
            ca: require('fs').readFileSync(file) }, response => response.pipe(process.stdout));";
        let result = world.program("node", &["-e", script, path, &port]).await;
        check("node", result, "GET /node HTTP/1.1");
    });
}
