// Fetches a page with net/http: with proxy variables, or without a look at them.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	client := &http.Client{}
	if len(os.Args) > 2 {
		client.Transport = &http.Transport{ForceAttemptHTTP2: true}
	}
	answer, err := client.Get(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 {
		fmt.Fprintln(os.Stderr, answer.Status, err)
		os.Exit(1)
	}
	os.Stdout.Write(body)
}
