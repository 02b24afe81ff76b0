// Fetches a page with HttpClient, which ignores proxy variables.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

public class Get {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(arguments[0])).build();
        var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new Exception("status " + answer.statusCode());
        }
        System.out.print(answer.body());
    }
}
