import org.eclipse.jetty.server.Connector;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.main.ServerRunner;
import software.amazon.dynamodb.services.local.server.DynamoDBProxyServer;

/** DynamoDB Local on the loopback address alone: it has no option for that, so its connectors are told. */
public class DynamoDBOnLoopback {
    public static void main(String[] arguments) throws Exception {
        DynamoDBProxyServer service = ServerRunner.createServerFromCommandLineArgs(arguments);
        var field = DynamoDBProxyServer.class.getDeclaredField("server");
        field.setAccessible(true);
        for (Connector connector : ((Server) field.get(service)).getConnectors()) {
            ((ServerConnector) connector).setHost("127.0.0.1");
        }
        service.start();
        service.join();
    }
}
